//! Hostile peers: their effect on server and viewer is bounded and counted.

use crate::message::{Contact, Fault, Join, Message, Ping, Refusal, Report, VERSION, Welcome};
use crate::packet::{self, Explore, Key, Video};
use crate::server::{Overload, Server, ServerConfig};
use crate::signing::{SharedChecks, Signer};
use crate::tree::NOBODY;
use crate::viewer::{Phase, SKIP_AFTER, Viewer, ViewerConfig};
use crate::{Input, Output, Peer, SERVER};
use bytes::Bytes;
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

/// The server's secret.
const SECRET: [u8; 32] = [5; 32];

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn contact(n: u8) -> Contact {
    Contact { address: ([10, 0, 0, n], 4000).into(), fingerprint: [n; 32] }
}

fn join(token: u8) -> Message {
    Message::Join(Join { version: VERSION, token: [token; 16], uplink: 8_000_000, forwards: true })
}

fn outputs(server: &mut Server) -> Vec<Output> {
    std::iter::from_fn(|| server.poll()).collect()
}

fn ts(packets: usize) -> Vec<u8> {
    let mut bytes = vec![9; packets * 188];
    bytes.iter_mut().step_by(188).for_each(|first| *first = 0x47);
    bytes
}

/// A server with one viewer, after one second of the stream.
fn served() -> (Server, Peer) {
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1), &SECRET);
    let peer = server.connect(at(0), contact(1)).unwrap();
    server.handle(at(0), Input::Message { from: peer, message: join(0) });
    let told = outputs(&mut server);
    assert!(told.iter().any(|output| matches!(output, Output::Message { message: Message::Welcome(_), .. })));
    for ms in 0..1000 {
        server.video(at(ms), &ts(2));
    }
    outputs(&mut server);
    (server, peer)
}

#[test]
fn a_thousand_joins_of_one_address_take_few_numbers() {
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1), &SECRET);
    let results: Vec<_> = (0..1000).map(|ms| server.connect(at(ms), contact(1))).collect();
    let taken = results.iter().filter(|result| result.is_ok()).count();
    assert!(taken <= 29, "{taken}");
    assert!(results.iter().flatten().all(|peer| *peer != SERVER));
    assert!(server.connect(at(1000), contact(2)).is_ok(), "some numbers are left for others");
    // Silent guests lose their numbers.
    server.timeout(at(10_000));
    let parted = outputs(&mut server).iter().filter(|output| matches!(output, Output::Part(_))).count();
    assert_eq!(parted, taken + 1);
    assert!(server.connect(at(10_000), contact(2)).is_ok());
}

#[test]
fn viewers_of_one_network_make_room_for_those_of_others() {
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 4), Seed::root(1), &SECRET);
    let mut joins = |ms: u64, n: u8| {
        let peer = server.connect(at(ms), contact(n)).unwrap();
        server.handle(at(ms), Input::Message { from: peer, message: join(0) });
        let told = outputs(&mut server);
        let refused = told.iter().filter_map(|output| match output {
            Output::Message { to, message: Message::Refused(Refusal::Full) } => Some(*to),
            _ => None,
        });
        let refused: Vec<Peer> = refused.collect();
        assert!(refused.iter().all(|peer| told.contains(&Output::Part(*peer))));
        (peer, refused)
    };
    let first: Vec<(Peer, Vec<Peer>)> = (0..4).map(|ms| joins(ms, 1)).collect();
    assert!(first.iter().all(|(_, refused)| refused.is_empty()));
    let (late, refused) = joins(4, 1);
    assert_eq!(refused, [late], "viewers of one network do not displace each other");
    assert_eq!(joins(5, 2).1, [first[3].0], "the last one of the largest network makes room");
    assert_eq!(joins(6, 3).1, [first[2].0]);
    let (late, refused) = joins(7, 2);
    assert_eq!(refused, [late], "the first network has only one more");
    assert_eq!(server.forest().members().len(), 4);
}

#[test]
fn unknown_peers_are_refused_with_the_reason() {
    let mut config = ServerConfig::new(Rate(20_000_000), 1);
    config.token = [7; 16];
    let mut server = Server::new(config, Seed::root(1), &SECRET);
    let mut try_to = |n: u8, message: Message| {
        let peer = server.connect(at(0), contact(n)).unwrap();
        server.handle(at(0), Input::Message { from: peer, message });
        outputs(&mut server).into_iter().find_map(|output| match output {
            Output::Message { message: Message::Refused(refusal), .. } => Some(refusal),
            _ => None,
        })
    };
    assert_eq!(try_to(1, join(6)), Some(Refusal::Token));
    let old = Join { version: VERSION + 1, token: [7; 16], uplink: 1, forwards: true };
    assert_eq!(try_to(2, Message::Join(old)), Some(Refusal::Version));
    assert_eq!(try_to(3, Message::Complaint { slice: 0, parent: 1, fault: Fault::Silent }), None);
    assert_eq!(try_to(4, join(7)), None);
    assert_eq!(try_to(5, join(7)), Some(Refusal::Full));
    assert!(server.counters.strange >= 1);
}

#[test]
fn excessive_repair_requests_are_limited() {
    let (mut server, peer) = served();
    let mut sent = 0;
    for ms in 1000..3000 {
        let keys: Vec<Key> = (1..40).map(|group| Key { group, slice: (ms % 10) as u8 }).collect();
        server.handle(at(ms), Input::Datagram { from: peer, bytes: packet::nack(&keys) });
        for output in outputs(&mut server) {
            if let Output::Datagram { bytes, .. } = output {
                sent += bytes.len();
            }
        }
    }
    let stream = 2 * 188 * 1000;
    assert!(sent < stream, "{sent} bytes in two seconds of {stream} bytes/s");
    assert!(server.counters.unrepaired > 10_000);
    // The server ignores a peer before it is admitted.
    let strange = server.counters.strange;
    server.handle(at(3000), Input::Datagram { from: 9, bytes: packet::nack(&[Key { group: 1, slice: 0 }]) });
    assert!(outputs(&mut server).is_empty());
    assert_eq!(server.counters.strange, strange + 1);
}

#[test]
fn the_server_survives_any_messages_of_a_viewer() {
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1), &SECRET);
    let peers: Vec<Peer> = (1..=4).map(|n| server.connect(at(0), contact(n)).unwrap()).collect();
    for peer in &peers {
        server.handle(at(0), Input::Message { from: *peer, message: join(0) });
    }
    for ms in 0..1000 {
        server.video(at(ms), &ts(2));
    }
    let mut random = Seed::root(2).random();
    for ms in 1000..9000 {
        let from = peers[random.below(peers.len())];
        let any = [0, 1, 2, 3, 4, 5, 9, 255, 4095, NOBODY - 1, NOBODY];
        let other = any[random.below(any.len())];
        let number = random.bits() as u32;
        let message = match random.below(7) {
            0 | 1 => Message::Complaint {
                slice: random.below(12) as u8,
                parent: other,
                fault: [Fault::Silent, Fault::Loses, Fault::Forges][random.below(3)],
            },
            2 => Message::Pong { number },
            3 => Message::Explored { id: number, held: number, stamps: vec![number; random.below(5)] },
            4 => Message::Report(Report {
                delivered: number,
                gaps: number,
                forwarded: random.bits(),
                ..Report::default()
            }),
            5 => Message::Join(Join { version: VERSION, token: [0; 16], uplink: u64::MAX, forwards: true }),
            _ => Message::Adopt { slice: 0, child: other },
        };
        server.handle(at(ms), Input::Message { from, message });
        if ms % 50 == 0 {
            server.timeout(at(ms));
            let bytes = packet::nack(&[Key { group: number, slice: number as u8 }]);
            server.handle(at(ms), Input::Datagram { from, bytes });
        }
        outputs(&mut server);
    }
    assert!(server.member(peers[0]).is_some() && server.counters.strange > 100);
}

#[test]
fn complaints_of_an_orphan_are_ignored() {
    let mut config = ServerConfig::new(Rate(1_000_000), 10);
    config.overload = Overload::Layers;
    let mut server = Server::new(config, Seed::root(1), &SECRET);
    let peer = server.connect(at(0), contact(1)).unwrap();
    let claim = Join { version: VERSION, token: [0; 16], uplink: 8_000_000, forwards: true };
    server.handle(at(0), Input::Message { from: peer, message: Message::Join(claim) });
    server.timeout(at(0));
    assert!(server.forest().orphans() > 0, "{:?}", server.forest().load(SERVER));
    for slice in 0..11 {
        let message = Message::Complaint { slice, parent: NOBODY, fault: Fault::Silent };
        server.handle(at(1), Input::Message { from: peer, message });
    }
    server.timeout(at(1000));
    assert!(server.member(peer).is_some());
}

#[test]
fn a_source_may_stall_send_garbage_and_change_its_rate() {
    let (mut server, peer) = served();
    let before = server.slice_rate();
    server.handle(at(5999), Input::Message { from: peer, message: Message::Report(Report::default()) });
    server.timeout(at(6000));
    outputs(&mut server);
    assert!(server.source().stalled(at(6000)) >= Span::from_secs(4));
    server.video(at(6000), &vec![0; 1 << 20]);
    assert!(server.source().garbage() > (1 << 20) - 400);
    let packets = |outputs: Vec<Output>| {
        outputs.iter().filter(|output| matches!(output, Output::Datagram { .. })).count()
    };
    assert_eq!(packets(outputs(&mut server)), 0, "garbage is not sent");
    for ms in 6000..9000 {
        server.video(at(ms), &ts(6));
    }
    let sent = packets(outputs(&mut server));
    assert!(sent > 2500, "it goes on: {sent}");
    let ratio = server.slice_rate() / before;
    assert!(ratio > 2.5, "three times the rate: {ratio}");
    assert!(server.member(peer).is_some());
}

/// A viewer that forwards and waits for admission.
fn viewer() -> Viewer {
    let config = ViewerConfig {
        token: [0; 16],
        uplink: Rate(6_000_000),
        forwards: true,
        skip_after: SKIP_AFTER,
        stamping: None,
        checks: SharedChecks::default(),
    };
    let mut viewer = Viewer::new(config);
    viewer.begin(at(0));
    viewer
}

/// The server's welcome to viewer 3.
fn welcome(slices: u8, parity: u8) -> Welcome {
    let key = Signer::new(&SECRET, usize::from(slices + parity)).public();
    Welcome { me: 3, slices, parity, key }
}

/// A manifest of packets, and the packets.
fn signed(total: usize, videos: Vec<Video>) -> (Bytes, Vec<Bytes>) {
    let mut signer = Signer::new(&SECRET, total);
    for video in videos {
        signer.push(at(0), video.key, video.encode(), total);
    }
    let mut sent = signer.due(at(1000), total).into_iter().map(|(_, bytes)| bytes);
    (sent.next().expect("a manifest comes first"), sent.collect())
}

#[test]
fn a_viewer_takes_the_stream_from_its_parents_only() {
    let mut viewer = viewer();
    let tell = |viewer: &mut Viewer, from: Peer, message: Message| {
        viewer.handle(at(0), Input::Message { from, message });
    };
    let welcome = welcome(2, 0);
    tell(&mut viewer, 5, Message::Welcome(welcome));
    assert_eq!(*viewer.phase(), Phase::Joining, "only the server welcomes");
    tell(&mut viewer, SERVER, Message::Welcome(welcome));
    assert_eq!(*viewer.phase(), Phase::In(welcome));
    for slice in 0..2 {
        tell(&mut viewer, SERVER, Message::Parent { slice, parent: 1, depth: 1 });
        tell(&mut viewer, SERVER, Message::Adopt { slice, child: 4 });
    }
    while viewer.poll().is_some() {}
    let payload = Bytes::from(ts(1));
    let video =
        |group, slice| Video { key: Key { group, slice }, data: 2, sent: 0, payload: payload.clone() };
    let send = |viewer: &mut Viewer, from: Peer, bytes: Bytes| {
        viewer.handle(at(1), Input::Datagram { from, bytes });
        std::iter::from_fn(|| viewer.poll()).collect::<Vec<Output>>()
    };
    assert!(send(&mut viewer, 9, video(1, 0).encode()).is_empty(), "9 is no parent");
    assert!(send(&mut viewer, 4, video(1, 0).encode()).is_empty(), "nor is a child");
    assert!(send(&mut viewer, 1, Bytes::from_static(&[1, 2, 3])).is_empty());
    assert!(send(&mut viewer, 1, video(1, 30).encode()).is_empty(), "there is no such slice");
    let forged =
        Explore { id: 1, at: 1, chain: vec![8, 3, 9], held: 0, stamps: vec![1], cargo: video(1, 0).encode() };
    assert!(send(&mut viewer, 9, forged.encode()).is_empty(), "8 should have sent it");
    assert_eq!(viewer.counts().strange, 6);
    let (manifest, _) = signed(2, vec![video(1, 0), video(1, 1)]);
    assert!(send(&mut viewer, 9, manifest.clone()).is_empty());
    assert_eq!(viewer.counts().strange, 7);
    let sent = send(&mut viewer, 1, manifest.clone());
    assert_eq!(sent, [Output::Datagram { to: 4, bytes: manifest.clone() }]);
    assert!(send(&mut viewer, 1, manifest).is_empty(), "it is known");
    let sent = send(&mut viewer, 1, video(1, 0).encode());
    assert!(sent.contains(&Output::Datagram { to: 4, bytes: video(1, 0).encode() }), "{sent:?}");
    // Only children get repairs, within limits.
    let nack = packet::nack(&[Key { group: 1, slice: 0 }]);
    assert!(send(&mut viewer, 9, nack.clone()).is_empty());
    let repaired = (0..10_000).filter(|_| !send(&mut viewer, 4, nack.clone()).is_empty()).count();
    assert!((1..1000).contains(&repaired), "{repaired}");
}

#[test]
fn a_forged_first_packet_does_not_block_the_stream() {
    let mut viewer = viewer();
    let tell = |viewer: &mut Viewer, message| viewer.handle(at(0), Input::Message { from: SERVER, message });
    tell(&mut viewer, Message::Welcome(welcome(2, 0)));
    (0..2).for_each(|slice| {
        tell(&mut viewer, Message::Parent { slice, parent: 1 + Peer::from(slice), depth: 1 })
    });
    let payload = Bytes::from(ts(1));
    let video =
        |group, slice| Video { key: Key { group, slice }, data: 2, sent: 0, payload: payload.clone() };
    let play = |viewer: &mut Viewer, group, slice: u8| {
        let bytes = video(group, slice).encode();
        viewer.handle(at(1), Input::Datagram { from: 1 + Peer::from(slice), bytes });
        std::iter::from_fn(|| viewer.poll()).filter(|output| matches!(output, Output::Deliver(_))).count()
    };
    assert_eq!(play(&mut viewer, 1 << 30, 0), 0, "a parent forges the first packet");
    assert_eq!(play(&mut viewer, u32::MAX, 0), 0);
    for first in (100..120).step_by(4) {
        let videos = (first..first + 4).flat_map(|group| [video(group, 0), video(group, 1)]);
        let (manifest, _) = signed(2, videos.collect());
        viewer.handle(at(1), Input::Datagram { from: 1, bytes: manifest });
    }
    assert_eq!(play(&mut viewer, 100, 1), 0, "playing begins when both slices are heard");
    let ping = Ping { number: 1, clock: 0, round_trip: 80_000, newest: 101 };
    tell(&mut viewer, Message::Ping(ping));
    assert_eq!(play(&mut viewer, 1 << 30, 0), 0, "now it can");
    let played: usize =
        (101..120).map(|group| play(&mut viewer, group, 0) + play(&mut viewer, group, 1)).sum();
    assert_eq!(played, 38);
}

#[test]
fn a_viewer_plays_the_stream_despite_forged_packets() {
    let mut viewer = viewer();
    let tell =
        |viewer: &mut Viewer, ms, message| viewer.handle(at(ms), Input::Message { from: SERVER, message });
    tell(&mut viewer, 0, Message::Welcome(welcome(4, 1)));
    for slice in 0..5 {
        // The parent of slice 4 forges as well: its parity matches nothing.
        tell(&mut viewer, 0, Message::Parent { slice, parent: 10 + Peer::from(slice), depth: 2 });
    }
    let payload = Bytes::from(ts(6));
    let mut random = Seed::root(3).random();
    let mut signer = Signer::new(&SECRET, 5);
    let (mut played, mut asked) = (0, 0);
    for ms in 1..10_000_u64 {
        if ms % 500 == 1 {
            let newest = signer.newest();
            let ping = Ping { number: 1, clock: ms as u32, round_trip: 80_000, newest };
            tell(&mut viewer, ms, Message::Ping(ping));
        }
        if ms % 5 == 0 {
            let group = 1 + (ms / 20) as u32;
            let slices = if ms / 5 % 4 == 3 { vec![3, 4] } else { vec![(ms / 5 % 4) as u8] };
            for slice in slices {
                let video = Video { key: Key { group, slice }, data: 4, sent: 0, payload: payload.clone() };
                signer.push(at(ms), video.key, video.encode(), 4);
            }
        }
        for (slice, bytes) in signer.due(at(ms), 4) {
            if slice < 4 {
                viewer.handle(at(ms), Input::Datagram { from: 10 + slice as Peer, bytes });
            }
        }
        let groups = [0, 1, (ms / 20) as u32, (ms / 20) as u32 + 300, 5000, 1 << 31, u32::MAX];
        let key = Key { group: groups[random.below(groups.len())], slice: random.below(12) as u8 };
        let forged = Video {
            key: if random.chance(0.5) { Key { slice: 4, ..key } } else { key },
            data: random.below(6) as u8,
            sent: random.bits() as u32,
            payload: payload.slice(..random.below(1128)),
        };
        let bytes = match random.below(4) {
            0 | 1 => forged.encode(),
            2 => packet::nack(&[key, Key { group: u32::MAX, slice: 255 }]),
            _ => Explore {
                id: 1,
                at: 0,
                chain: vec![3, 9],
                held: u32::MAX,
                stamps: vec![],
                cargo: forged.encode(),
            }
            .encode(),
        };
        // The server and the other parents are honest.
        let from = if random.chance(0.5) { 14 } else { 1 + random.below(19) as Peer };
        viewer
            .handle(at(ms), Input::Datagram { from: if (10..14).contains(&from) { 9 } else { from }, bytes });
        if viewer.next_timeout().is_some_and(|due| due <= at(ms)) {
            viewer.timeout(at(ms));
        }
        for output in std::iter::from_fn(|| viewer.poll()) {
            match output {
                Output::Deliver(bytes) => {
                    assert_eq!(bytes, payload, "a forged packet was played");
                    played += 1;
                }
                Output::Datagram { bytes, .. } => asked += bytes.len(),
                _ => {}
            }
        }
    }
    // The stream has 2000 packets; the last ones are still waiting.
    assert!(played > 1500, "{played} played, {:?}, {:?}", viewer.packets(), viewer.counts());
    assert!(asked < 2_000_000, "{asked} bytes asked for");
}

/// A viewer with parents 10 and 11 in two slices and the child 4 in both.
fn interior() -> Viewer {
    let mut viewer = viewer();
    let tell = |viewer: &mut Viewer, message| viewer.handle(at(0), Input::Message { from: SERVER, message });
    tell(&mut viewer, Message::Welcome(welcome(2, 0)));
    for slice in 0..2 {
        tell(&mut viewer, Message::Parent { slice, parent: 10 + Peer::from(slice), depth: 1 });
        tell(&mut viewer, Message::Adopt { slice, child: 4 });
    }
    while viewer.poll().is_some() {}
    viewer
}

fn send(viewer: &mut Viewer, ms: u64, from: Peer, bytes: Bytes) -> Vec<Output> {
    viewer.handle(at(ms), Input::Datagram { from, bytes });
    std::iter::from_fn(|| viewer.poll()).collect()
}

fn videos(groups: std::ops::Range<u32>) -> Vec<Video> {
    let keys = groups.flat_map(|group| [Key { group, slice: 0 }, Key { group, slice: 1 }]);
    keys.map(|key| Video { key, data: 2, sent: 7, payload: ts(6).into() }).collect()
}

fn accuses(outputs: &[Output]) -> usize {
    let accuses = |output: &&Output| {
        matches!(output, Output::Message { message: Message::Complaint { fault: Fault::Forges, .. }, .. })
    };
    outputs.iter().filter(accuses).count()
}

#[test]
fn altered_packets_go_no_further_and_their_sender_is_accused() {
    let mut viewer = interior();
    let (manifest, packets) = signed(2, videos(1..5));
    send(&mut viewer, 1, 10, manifest.clone());
    let mut accused = 0;
    for (n, packet) in packets.iter().enumerate() {
        // Any byte may be another: position, number of slices, time, payload.
        for at in [2, 7, 11, 40, packet.len() - 1] {
            let mut forged = packet.to_vec();
            forged[at] ^= 1;
            let sent = send(&mut viewer, 2, 10 + (n % 2) as Peer, forged.into());
            accused += accuses(&sent);
            assert_eq!(sent.len(), accuses(&sent), "{sent:?}");
        }
    }
    assert_eq!(accused, 2, "once for each parent within 0.6 s");
    assert_eq!(viewer.counts().forged, 40);
    // The packets themselves still arrive.
    let sent: Vec<Output> =
        (0..8).flat_map(|n| send(&mut viewer, 3, 10 + (n % 2) as Peer, packets[n].clone())).collect();
    let forwarded = |output: &&Output| matches!(output, Output::Datagram { to: 4, .. });
    assert_eq!(sent.iter().filter(forwarded).count(), 8, "{sent:?}");
    // A packet of a later time under the signature of an earlier one.
    let mut replayed = manifest.to_vec();
    replayed[4] = 9;
    let sent = send(&mut viewer, 4, 10, replayed.into());
    assert!(!sent.iter().any(|output| matches!(output, Output::Datagram { .. })), "{sent:?}");
}

#[test]
fn forged_manifests_cost_one_check_per_second() {
    let mut viewer = interior();
    let (manifest, packets) = signed(2, videos(1..5));
    let mut forged = manifest.to_vec();
    for n in 0..2000_u64 {
        forged[4] = (n % 200) as u8 + 50;
        let sent = send(&mut viewer, n, 10, forged.clone().into());
        assert!(sent.iter().all(|output| matches!(output, Output::Message { .. })), "{sent:?}");
    }
    assert_eq!(viewer.counts().forged, 2, "checked signatures");
    // The other parent is heard.
    let sent = send(&mut viewer, 2000, 11, manifest);
    assert!(matches!(sent[..], [Output::Datagram { to: 4, .. }]), "{sent:?}");
    assert!(!send(&mut viewer, 2000, 10, packets[0].clone()).is_empty());
}

#[test]
fn a_missing_manifest_is_requested_from_the_sender_then_from_others() {
    let mut viewer = interior();
    let (manifest, packets) = signed(2, videos(1..5));
    assert!(
        packets
            .iter()
            .all(|packet| send(&mut viewer, 1, 10 + (packet[1] % 2) as Peer, packet.clone()).is_empty())
    );
    let mut asked = Vec::new();
    for ms in 1..1200 {
        if viewer.next_timeout().is_some_and(|due| due <= at(ms)) {
            viewer.timeout(at(ms));
        }
        for output in std::iter::from_fn(|| viewer.poll()) {
            if let Output::Datagram { to, bytes } = output {
                assert_eq!(
                    packet::decode(&bytes),
                    Some(packet::Datagram::Nack(vec![Key { group: 1, slice: 0 }.of_manifest()]))
                );
                asked.push(to);
            }
        }
    }
    assert_eq!(asked[..2], [10, SERVER]);
    assert!(asked.len() <= 9, "{asked:?}");
    let sent = send(&mut viewer, 1200, SERVER, manifest);
    let packets = sent.iter().filter(|output| matches!(output, Output::Datagram { to: 4, .. }));
    assert_eq!(packets.count(), 9, "the manifest and eight packets: {sent:?}");
}

#[test]
fn a_viewer_plays_all_before_the_end_and_says_so_once() {
    for is_lost in [false, true] {
        let mut viewer = interior();
        let (manifest, packets) = signed(2, videos(1..5));
        send(&mut viewer, 1, 10, manifest);
        let (last, before) = packets.split_last().unwrap();
        for (n, packet) in before.iter().enumerate() {
            send(&mut viewer, 2, 10 + n as Peer % 2, packet.clone());
        }
        let tell = |viewer: &mut Viewer, group| {
            viewer.handle(at(3), Input::Message { from: SERVER, message: Message::End(group) });
            std::iter::from_fn(|| viewer.poll()).filter(|output| *output == Output::End).count()
        };
        assert_eq!(tell(&mut viewer, 5), 0, "a packet is missing");
        let strange = viewer.counts().strange;
        assert_eq!(tell(&mut viewer, u32::MAX), 0);
        assert_eq!(viewer.counts().strange, strange + 1, "no stream can be so long");
        let mut outputs = Vec::new();
        if !is_lost {
            outputs = send(&mut viewer, 4, 11, last.clone());
        }
        while let Some(due) = viewer.next_timeout().filter(|due| *due < at(4000)) {
            viewer.timeout(due);
            outputs.extend(std::iter::from_fn(|| viewer.poll()));
        }
        assert_eq!(outputs.iter().filter(|output| **output == Output::End).count(), 1);
        assert_eq!(viewer.packets().gaps, u64::from(is_lost));
    }
}
