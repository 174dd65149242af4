//! The kernel's TCP between two network namespaces.
//!
//! A userspace link ([`Link`], as in the model) reads packets from one TUN device and writes them to the other when
//! they are due.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{collections::VecDeque, io};

use nix::poll::{PollFd, PollFlags};
use nix::sched::{CloneFlags, unshare};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Socket, Type};
use std::os::fd::AsFd;
use tappers::{Interface, Tun};
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::tcp::pair::{Link, LinkRule};

/// Conditions of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The kernel's name of the algorithm: `"reno"`, `"cubic"` or `"bbr"`.
    pub congestion: &'static str,
    /// The link from sender to receiver.
    pub there: LinkRule,
    /// The link back.
    pub back: LinkRule,
    /// Start of the goodput measurement, after the connection attempt.
    pub from: Span,
    /// End of the measurement.
    pub until: Span,
    /// Seed of random losses: the n-th packet has the same fate in kernel and model.
    pub seed: u64,
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Payload bytes per second.
    pub goodput: f64,
    /// Packets that the forward link dropped during the whole run.
    pub dropped: u64,
    /// Delay of deliveries, 99th percentile. A busy machine makes the path longer.
    pub late: Duration,
}

/// Why the kernel cannot be measured here; `None` if it can. Needs root and `/dev/net/tun`.
pub fn unavailable() -> Option<String> {
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace: {e}"))?;
        Tun::new_named(interface()).map_err(|e| format!("no TUN device: {e}"))?;
        ip(&["link", "show"]).map_err(|e| format!("no `ip` tool: {e}"))
    })
    .join()
    .unwrap_or_else(|_| Err("the attempt to make a network namespace panicked".into()))
    .err()
}

/// Whether this kernel has an algorithm. Most have `reno` and `cubic`; `bbr` is often a module.
pub fn has(congestion: &str) -> bool {
    let list = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    list.is_ok_and(|list| list.split_whitespace().any(|name| name == congestion))
}

/// Runs the kernel's TCP under the conditions, for `until` of real time.
///
/// # Errors
/// The system's error if namespaces, devices or sockets fail.
pub fn measure(conditions: &Conditions) -> io::Result<Measured> {
    let stop = Arc::new(AtomicBool::new(false));
    let received = Arc::new(AtomicU64::new(0));
    let (tuns, devices) = mpsc::channel();
    let (go, start) = mpsc::channel::<()>();
    let server = {
        let (stop, received, tuns) = (stop.clone(), received.clone(), tuns.clone());
        thread::spawn(move || {
            enter(1, &tuns)?;
            receive(&stop, &received)
        })
    };
    let client = {
        let (stop, congestion) = (stop.clone(), conditions.congestion);
        thread::spawn(move || {
            enter(0, &tuns)?;
            let _ = start.recv();
            send(congestion, &stop)
        })
    };
    let mut ends = [None, None];
    for _ in 0..2 {
        match devices.recv() {
            Ok((end, tun)) => ends[end as usize] = Some(tun),
            Err(_) => break,
        }
    }
    // Stop and join both threads to report the error of the one that failed.
    let [Some(a), Some(b)] = ends else {
        drop(go);
        stop.store(true, Ordering::Relaxed);
        client.join().expect("sender")?;
        server.join().expect("receiver")?;
        return Err(io::Error::other("a namespace did not come up"));
    };
    let link = {
        let (stop, conditions) = (stop.clone(), *conditions);
        thread::spawn(move || carry(&conditions, [a, b], &stop))
    };
    thread::sleep(Duration::from_millis(20));
    let _ = go.send(());
    thread::sleep(Duration::from_nanos(conditions.from.0));
    let (begin, before) = (now(), received.load(Ordering::Relaxed));
    thread::sleep(Duration::from_nanos((conditions.until - conditions.from).0));
    let (end, after) = (now(), received.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    client.join().expect("sender")?;
    server.join().expect("receiver")?;
    let (dropped, late) = link.join().expect("link")?;
    Ok(Measured { goodput: (after - before) as f64 / (end - begin).as_secs_f64(), dropped, late })
}

#[expect(clippy::disallowed_methods, reason = "the kernel lives in real time")]
fn now() -> Instant {
    Instant::now()
}

fn interface() -> Interface {
    Interface::new("tide0").expect("a short ASCII name")
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr))))
}

/// Moves this thread into a new namespace with a TUN device.
fn enter(end: u8, tuns: &mpsc::Sender<(u8, Tun)>) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let mut tun = Tun::new_named(interface())?;
    tun.set_nonblocking(true)?;
    ip(&["address", "add", &format!("10.0.0.{}/24", end + 1), "dev", "tide0"])?;
    ip(&["link", "set", "tide0", "mtu", "1500", "txqueuelen", "10000", "up"])?;
    tuns.send((end, tun)).map_err(io::Error::other)
}

const SERVER: &str = "10.0.0.2:7000";
const PATIENCE: Duration = Duration::from_millis(100);

fn send(congestion: &str, stop: &AtomicBool) -> io::Result<()> {
    let mut socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    socket.set_tcp_nodelay(true)?;
    let server: SocketAddrV4 = SERVER.parse().expect("an address");
    socket.connect(&server.into())?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![0; 64 << 10];
    serve_first(10);
    while !stop.load(Ordering::Relaxed) {
        match socket.write(&chunk) {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive(stop: &AtomicBool, received: &AtomicU64) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let server: SocketAddrV4 = SERVER.parse().expect("an address");
    socket.bind(&server.into())?;
    socket.listen(1)?;
    socket.set_read_timeout(Some(PATIENCE))?; // accept honours it
    let mut peer = loop {
        match socket.accept() {
            Ok((peer, _)) => break peer,
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    };
    peer.set_read_timeout(Some(PATIENCE))?;
    let mut chunk = vec![0; 256 << 10];
    serve_first(10);
    while !stop.load(Ordering::Relaxed) {
        match peer.read(&mut chunk) {
            Ok(0) => break,
            Ok(bytes) => drop(received.fetch_add(bytes as u64, Ordering::Relaxed)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Requests real-time priority, and continues if the system refuses it.
///
/// A link that waits for the processor is a longer link. A sender that is preempted inside a system call holds its
/// socket; acknowledgements queue up and then release a burst.
fn serve_first(priority: u8) {
    if let Ok(value) = ThreadPriorityValue::try_from(priority) {
        let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
        let priority = ThreadPriority::Crossplatform(value);
        let _ = set_thread_priority_and_policy(thread_native_id(), priority, policy);
    }
}

/// Runs the link in both directions until stopped.
fn carry(conditions: &Conditions, tuns: [Tun; 2], stop: &AtomicBool) -> io::Result<(u64, Duration)> {
    serve_first(20);
    let seed = Seed::root(conditions.seed);
    let mut links =
        [Link::new(conditions.there, seed.fork_index(0)), Link::new(conditions.back, seed.fork_index(1))];
    let mut under_way: [VecDeque<(Time, Vec<u8>)>; 2] = Default::default();
    let mut lateness = Vec::new();
    let mut buffer = vec![0; 2048];
    let start = now();
    let elapsed = || Time(start.elapsed().as_nanos() as u64);
    while !stop.load(Ordering::Relaxed) {
        let mut next = Time::NEVER;
        for (link, packets) in under_way.iter_mut().enumerate() {
            while let Some((due, _)) = packets.front() {
                let present = elapsed();
                if *due > present {
                    next = next.min(*due);
                    break;
                }
                lateness.push(present.since(*due).0);
                let (_, packet) = packets.pop_front().expect("the front was there");
                tuns[1 - link].send(&packet)?;
            }
        }
        // Wake up every 50 ms to notice `stop`.
        let wait = next.since(elapsed()).0.min(50_000_000);
        let mut fds = [
            PollFd::new(tuns[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(tuns[1].as_fd(), PollFlags::POLLIN),
        ];
        nix::poll::ppoll(&mut fds, Some(TimeSpec::from_duration(Duration::from_nanos(wait))), None)?;
        for link in 0..2 {
            loop {
                let length = match tuns[link].recv(&mut buffer) {
                    Ok(length) => length,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                };
                if !is_tcp(&buffer[..length]) {
                    continue;
                }
                if let [Some(due), _] = links[link].carry(elapsed(), length as u64) {
                    under_way[link].push_back((due, buffer[..length].to_vec()));
                }
            }
        }
    }
    lateness.sort_unstable();
    let late = lateness.get(lateness.len() * 99 / 100).copied().unwrap_or(0);
    Ok((links[0].dropped(), Duration::from_nanos(late)))
}

/// IPv4 with protocol 6. The devices also send IPv6, which the link drops.
fn is_tcp(packet: &[u8]) -> bool {
    packet.len() >= 20 && packet[0] >> 4 == 4 && packet[9] == 6
}
