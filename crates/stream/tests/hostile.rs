//! Hostile peers: their effect on server and viewer is bounded and counted.

use bytes::Bytes;
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_stream::message::{Contact, Join, Message, Ping, Refusal, Report, VERSION, Welcome};
use tidegate_stream::packet::{self, Explore, Key, Video};
use tidegate_stream::server::{Overload, Server, ServerConfig};
use tidegate_stream::tree::NOBODY;
use tidegate_stream::viewer::{Phase, SKIP_AFTER, Viewer, ViewerConfig};
use tidegate_stream::{Input, Output, Peer, SERVER};

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
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1));
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
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1));
    let results: Vec<_> = (0..1000).map(|ms| server.connect(at(ms), contact(1))).collect();
    let taken = results.iter().filter(|result| result.is_ok()).count();
    assert!(taken <= 29, "{taken}");
    assert!(results.iter().flatten().all(|peer| *peer != SERVER));
    // Silent guests lose their numbers.
    server.timeout(at(10_000));
    let parted = outputs(&mut server).iter().filter(|output| matches!(output, Output::Part(_))).count();
    assert_eq!(parted, taken);
    assert!(server.connect(at(10_000), contact(2)).is_ok());
}

#[test]
fn unknown_peers_are_refused_with_the_reason() {
    let mut config = ServerConfig::new(Rate(20_000_000), 1);
    config.token = [7; 16];
    let mut server = Server::new(config, Seed::root(1));
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
    assert_eq!(try_to(3, Message::Complaint { slice: 0, parent: 1, silent: true }), None);
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
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1));
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
                silent: random.chance(0.5),
            },
            2 => Message::Pong { number, digest: random.bits() },
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
    let mut server = Server::new(config, Seed::root(1));
    let peer = server.connect(at(0), contact(1)).unwrap();
    let claim = Join { version: VERSION, token: [0; 16], uplink: 8_000_000, forwards: true };
    server.handle(at(0), Input::Message { from: peer, message: Message::Join(claim) });
    server.timeout(at(0));
    assert!(server.forest().orphans() > 0, "{:?}", server.forest().load(SERVER));
    for slice in 0..11 {
        let message = Message::Complaint { slice, parent: NOBODY, silent: true };
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
    assert!(packets(outputs(&mut server)) > 2500, "it goes on");
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
    };
    let mut viewer = Viewer::new(config);
    viewer.begin(at(0));
    viewer
}

#[test]
fn a_viewer_takes_the_stream_from_its_parents_only() {
    let mut viewer = viewer();
    let tell = |viewer: &mut Viewer, from: Peer, message: Message| {
        viewer.handle(at(0), Input::Message { from, message });
    };
    let welcome = Welcome { me: 3, slices: 2, parity: 0 };
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
    tell(&mut viewer, Message::Welcome(Welcome { me: 3, slices: 2, parity: 0 }));
    (0..2).for_each(|slice| {
        tell(&mut viewer, Message::Parent { slice, parent: 1 + Peer::from(slice), depth: 1 })
    });
    let payload = Bytes::from(ts(1));
    let play = |viewer: &mut Viewer, group, slice: u8| {
        let key = Key { group, slice };
        let bytes = Video { key, data: 2, sent: 0, payload: payload.clone() }.encode();
        viewer.handle(at(1), Input::Datagram { from: 1 + Peer::from(slice), bytes });
        std::iter::from_fn(|| viewer.poll()).filter(|output| matches!(output, Output::Deliver(_))).count()
    };
    assert_eq!(play(&mut viewer, 1 << 30, 0), 0, "a parent forges the first packet");
    assert_eq!(play(&mut viewer, u32::MAX, 0), 0);
    assert_eq!(play(&mut viewer, 100, 1), 0, "the stream cannot be told from it");
    let ping = Ping { number: 1, clock: 0, round_trip: 80_000, newest: 101, audit: Key::default() };
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
    tell(&mut viewer, 0, Message::Welcome(Welcome { me: 3, slices: 4, parity: 1 }));
    for slice in 0..5 {
        // The parent of slice 4 forges as well: its parity matches nothing.
        tell(&mut viewer, 0, Message::Parent { slice, parent: 10 + Peer::from(slice), depth: 2 });
    }
    let payload = Bytes::from(ts(6));
    let mut random = Seed::root(3).random();
    let (mut played, mut asked) = (0, 0);
    for ms in 1..10_000_u64 {
        if ms % 500 == 1 {
            let newest = 1 + (ms / 20) as u32;
            let ping =
                Ping { number: 1, clock: ms as u32, round_trip: 80_000, newest, audit: Key::default() };
            tell(&mut viewer, ms, Message::Ping(ping));
        }
        if ms % 5 == 0 {
            let key = Key { group: 1 + (ms / 20) as u32, slice: (ms / 5 % 4) as u8 };
            let video = Video { key, data: 4, sent: ms as u32, payload: payload.clone() };
            let from = 10 + Peer::from(key.slice);
            viewer.handle(at(ms), Input::Datagram { from, bytes: video.encode() });
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
                Output::Deliver(bytes) => played += usize::from(bytes.len() == payload.len()),
                Output::Datagram { bytes, .. } => asked += bytes.len(),
                _ => {}
            }
        }
    }
    // The stream has 2000 packets; the last ones are still waiting.
    assert!(played > 1500, "{played} played, {:?}, {:?}", viewer.packets(), viewer.counts());
    assert!(asked < 2_000_000, "{asked} bytes asked for");
}
