//! The cost of signatures in processor time: a server and a viewer of a stream of 4 Mbit/s, without sockets.
//!
//! `cargo bench -p tidegate-net --bench stream` prints shares of one core. The viewer's share holds all of its work but
//! the network: checks, order, forwarding to one child per slice.

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_stream::message::{Message, Welcome};
use tidegate_stream::packet::{PAYLOAD, WIRE};
use tidegate_stream::signing::{SharedChecks, Signer};
use tidegate_stream::viewer::{SKIP_AFTER, Viewer, ViewerConfig};
use tidegate_stream::{Input, SERVER, Source};

const RATE: Rate = Rate(4_000_000);
const SLICES: usize = 10;

/// Processor time of this thread, seconds.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Payloads of so many seconds, with their times.
fn payloads(seconds: u64) -> Vec<(Time, Vec<u8>)> {
    let gap = RATE.span_for(PAYLOAD as u64);
    let count = seconds * 1_000_000_000 / gap.0;
    let payload =
        |n: u64| (0..PAYLOAD).map(move |at| if at % 188 == 0 { 0x47 } else { (n as usize * 7 + at) as u8 });
    (0..count).map(|n| (Time::ZERO + gap * n, payload(n).collect())).collect()
}

fn viewer(key: [u8; 32]) -> Viewer {
    let mut viewer = Viewer::new(ViewerConfig {
        token: [0; 16],
        uplink: Rate(20_000_000),
        forwards: true,
        skip_after: SKIP_AFTER,
        stamping: None,
        checks: SharedChecks::default(),
    });
    let welcome = Welcome { me: 1, slices: SLICES as u8, parity: 1, key };
    viewer.handle(Time::ZERO, Input::Message { from: SERVER, message: Message::Welcome(welcome) });
    for slice in 0..=SLICES as u8 {
        for message in
            [Message::Parent { slice, parent: SERVER, depth: 1 }, Message::Adopt { slice, child: 2 }]
        {
            viewer.handle(Time::ZERO, Input::Message { from: SERVER, message });
        }
    }
    viewer
}

fn main() {
    let seconds = if std::env::args().any(|argument| argument == "--bench") { 60 } else { 1 };
    let mut signer = Signer::new(&[7; 32], SLICES + 1);
    let mut source = Source::new(SLICES, 1);
    let (mut signing, mut sent): (f64, Vec<(Time, Bytes)>) = (0.0, Vec::new());
    for (now, payload) in payloads(seconds) {
        let packets = source.push(now, &payload);
        let begun = thread_time();
        packets.into_iter().for_each(|(key, packet)| signer.push(now, key, packet, SLICES));
        sent.extend(signer.due(now, SLICES).into_iter().map(|(_, bytes)| (now, bytes)));
        signing += thread_time() - begun;
    }
    let end = Time::ZERO + Span::from_secs(seconds + 1);
    sent.extend(signer.due(end, SLICES).into_iter().map(|(_, bytes)| (end, bytes)));
    let mut viewer = viewer(signer.public());
    let (mut played, mut bytes, mut signatures) = (0, 0, 0);
    let begun = thread_time();
    for (now, packet) in sent {
        bytes += packet.len() + WIRE;
        if packet[0] == tidegate_stream::packet::MANIFEST {
            signatures += packet.len() + WIRE;
        }
        viewer.handle(now, Input::Datagram { from: SERVER, bytes: packet });
        if viewer.next_timeout().is_some_and(|due| due <= now) {
            viewer.timeout(now);
        }
        while let Some(output) = viewer.poll() {
            played += u64::from(matches!(output, tidegate_stream::Output::Deliver(_)));
        }
    }
    let watching = thread_time() - begun;
    let expected =
        payloads(seconds).len() as u64 - Span::from_millis(500).0 / RATE.span_for(PAYLOAD as u64).0;
    assert!(played >= expected && viewer.counts().forged == 0, "{played} of {expected}");
    let share = |time: f64| 100.0 * time / seconds as f64;
    println!("signing: {:.3} % of a core", share(signing));
    println!("watching, with all checks: {:.3} % of a core", share(watching));
    println!("signatures: {:.3} % of the bytes", 100.0 * signatures as f64 / bytes as f64);
}
