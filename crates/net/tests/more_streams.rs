//! A local application talks to a hidden service through SOCKS5, on loopback.

use crate::loopback;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loopback::{PEERS, directory};
use tidegate_control::units::Span;
use tidegate_more::descriptor::Descriptor;
use tidegate_more::directory::Directory;
use tidegate_net::clock;
use tidegate_net::more::{Front, Receiver, socks};
use tidegate_net::more::{PeerConfig, Role, Summary, run};
use tidegate_net::more::{Serving, serve};

const NAME: &str = "echo.more";
/// Timeout of a SOCKS5 handshake. Some tests wait until it passes.
const HANDSHAKE: Span = Span::from_secs(5);

fn settings(directory: &Directory, me: u16) -> PeerConfig {
    PeerConfig { hops: 2, ..loopback::settings(directory, me, "explicit") }
}

/// Requests a connection to a name; returns the second byte of the reply.
fn ask(front: SocketAddr, name: &str) -> (TcpStream, u8) {
    let mut tcp = TcpStream::connect(front).expect("listens");
    let request = [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &[0, 80]].concat();
    tcp.write_all(&request).expect("sent");
    let mut answer = [0; 12];
    tcp.read_exact(&mut answer).expect("answered");
    assert_eq!((answer[..3] == [5, 0, 5], answer.len()), (true, 12));
    (tcp, answer[3])
}

/// Stops a hidden service.
struct Service {
    stop: AtomicBool,
    stopped: AtomicBool,
}

impl Service {
    /// Stops it, and waits until it sends nothing more.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        while !self.stopped.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs an overlay with a hidden `target`, and calls `talk` with the SOCKS5 front, the UDP address of the front's peer, and the
/// service.
fn with_overlay(target: SocketAddr, talk: impl FnOnce(SocketAddr, SocketAddr, &Service)) {
    with_overlay_of(settings, target, talk);
}

/// The same with other peer settings. Returns the front's summary.
fn with_overlay_of(
    settings: fn(&Directory, u16) -> PeerConfig,
    target: SocketAddr,
    talk: impl FnOnce(SocketAddr, SocketAddr, &Service),
) -> Summary {
    let directory = directory();
    let stop = AtomicBool::new(false);
    let service = Service { stop: AtomicBool::new(false), stopped: AtomicBool::new(false) };
    let published: Mutex<Option<Descriptor>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for me in 1..PEERS - 1 {
            let (directory, stop) = (&directory, &stop);
            scope.spawn(move || run(&settings(directory, me), Role::Relay, stop).expect("relays"));
        }
        scope.spawn(|| {
            let publish = |descriptor: &Descriptor| {
                *published.lock().expect("not poisoned") = Some(descriptor.clone());
                Ok(())
            };
            let serving =
                Serving { name: [7; 32], key: [8; 32], paths: 64, target, publish: Box::new(publish) };
            let served = serve(&settings(&directory, PEERS - 1), vec![serving], &service.stop);
            service.stopped.store(true, Ordering::Release);
            served.expect("serves")
        });
        let descriptor = loop {
            if let Some(descriptor) = published.lock().expect("not poisoned").clone() {
                break Descriptor::parse(&descriptor.write(&[7; 32])).expect("signed");
            }
            std::thread::yield_now();
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let front = listener.local_addr().expect("bound");
        let (directory, stop) = (&directory, &stop);
        let published = &published;
        let fronting = scope.spawn(move || {
            let reread = || published.lock().expect("not poisoned").clone();
            let receiver = Receiver { descriptor, names: vec![NAME.into()], reread: Box::new(reread) };
            let front = Front { listener, receivers: vec![receiver], handshake: HANDSHAKE };
            socks(&settings(directory, 0), front, stop).expect("fronts")
        });
        talk(front, directory.peers[0].address.parse().expect("an address"), &service);
        service.stop.store(true, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        fronting.join().expect("no panic")
    })
}

/// A target that answers with the reversed request.
fn reversing() -> SocketAddr {
    let target = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let address = target.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut tcp in target.incoming().flatten() {
            std::thread::spawn(move || {
                let mut heard = Vec::new();
                tcp.read_to_end(&mut heard).expect("ends");
                heard.reverse();
                tcp.write_all(&heard).expect("answers");
            });
        }
    });
    address
}

#[test]
fn an_application_talks_to_a_hidden_target_through_the_front() {
    with_overlay(reversing(), |front, _, _| {
        let content: Vec<u8> = (0..9_000u32).map(|i| ((i * i) >> 4) as u8).collect();
        let streams: Vec<_> = [9_000, 1, 0]
            .map(|length| {
                let (mut tcp, code) = ask(front, NAME);
                assert_eq!(code, 0);
                tcp.write_all(&content[..length]).expect("sent");
                tcp.shutdown(Shutdown::Write).expect("ends");
                (tcp, length)
            })
            .into_iter()
            .collect();
        for (mut tcp, length) in streams {
            let mut answer = Vec::new();
            tcp.read_to_end(&mut answer).expect("answers and ends");
            answer.reverse();
            assert!(answer == content[..length], "{length}: {} bytes", answer.len());
        }
        // Other names and addresses are refused.
        assert_eq!(ask(front, "elsewhere.example").1, 4);
        let mut tcp = TcpStream::connect(front).expect("listens");
        tcp.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 80]).expect("sent");
        let mut answer = Vec::new();
        tcp.read_to_end(&mut answer).expect("closes");
        assert_eq!(answer, [5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0]);
        for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[4, 1, 0, 80, 1, 1, 1, 1, 0], &[0xff; 5000]] {
            let mut tcp = TcpStream::connect(front).expect("listens");
            let _ = tcp.write_all(garbage);
            let mut answer = Vec::new();
            let _ = tcp.read_to_end(&mut answer);
            assert!(answer.is_empty());
        }
    });
}

#[test]
fn an_unreachable_target_is_refused() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("loopback has ports").local_addr().expect("bound");
    with_overlay(nobody, |front, _, _| {
        let (mut tcp, code) = ask(front, NAME);
        // The first answer may or may not know the refusal, depending on timing. Otherwise the connection just ends.
        assert!([0, 5].contains(&code), "{code}");
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer);
        assert!(answer.is_empty());
    });
}

/// Within 10 s, and a moment for the threads, both streams get an error instead of hanging.
#[test]
fn a_silent_receiver_causes_an_error_reply() {
    with_overlay(reversing(), |front, _, service| {
        assert_eq!(ask(front, NAME).1, 0, "it is there");
        service.stop();
        #[expect(clippy::disallowed_methods, reason = "how long an application waits is the point")]
        let asked = Instant::now();
        std::thread::scope(|scope| {
            let both = [0; 2].map(|_| scope.spawn(|| ask(front, NAME).1));
            for code in both {
                // TTL expired: the service does not answer.
                assert_eq!(code.join().expect("answered"), 6);
            }
        });
        let waited = asked.elapsed();
        assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&waited), "{waited:?}");
    });
}

/// Silent connections beyond the handshake limit, and datagrams from unknown senders: an application is served all
/// the same, and silent connections are closed by timeout.
#[test]
fn silent_connections_and_a_flood_do_not_lock_out_an_application() {
    with_overlay(reversing(), |front, peer, _| {
        let silent: Vec<TcpStream> = (0..400)
            .map(|n| {
                let mut tcp = TcpStream::connect(front).expect("listens");
                tcp.write_all(&[5, 1, 0][..n % 4]).expect("sent");
                tcp
            })
            .collect();
        let flooding = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has ports");
                while flooding.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[9; 100], peer);
                }
            });
            let began = clock::now();
            let (mut tcp, code) = ask(front, NAME);
            assert_eq!(code, 0);
            // The silent ones would take six handshake timeouts, 64 at a time.
            let took = clock::now().since(began);
            assert!(took < HANDSHAKE * 4, "{took}");
            tcp.write_all(b"through").expect("sent");
            tcp.shutdown(Shutdown::Write).expect("ends");
            let mut answer = Vec::new();
            tcp.read_to_end(&mut answer).expect("answers and ends");
            assert_eq!(answer, b"hguorht");
            flooding.store(false, Ordering::Relaxed);
        });
        for (n, mut tcp) in silent.into_iter().enumerate() {
            let mut answer = Vec::new();
            // Closed, or reset if unread bytes remained.
            let _ = tcp.read_to_end(&mut answer);
            assert_eq!(answer, if n % 4 == 3 { &[5, 0][..] } else { &[] });
        }
    });
}

/// Relays forward 20 packets per second. Each relay that drops a cell tells the source.
#[test]
fn relays_over_their_limit_tell_the_source() {
    let target = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let address = target.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut tcp = target.accept().expect("one comes").0;
        while tcp.write_all(&[7; 4096]).is_ok() {}
    });
    let slow = |directory: &Directory, me: u16| {
        let limit = if (1..PEERS - 1).contains(&me) { 30_000.0 } else { 2_000_000.0 };
        PeerConfig { hops: 2, limit, ..loopback::settings(directory, me, "random") }
    };
    let mut bytes = 0;
    let summary = with_overlay_of(slow, address, |front, _, _| {
        let (mut tcp, code) = ask(front, NAME);
        assert_eq!(code, 0);
        tcp.set_read_timeout(Some(Duration::from_millis(100))).expect("not zero");
        let mut block = [0; 4096];
        for _ in 0..100 {
            bytes += tcp.read(&mut block).unwrap_or(0);
            std::thread::sleep(Duration::from_millis(60));
        }
    });
    let sent = summary.upload;
    assert!(sent.refused > 0 && sent.acked > 0 && bytes > 0, "{sent:?}, {bytes} bytes");
}

#[test]
fn invalid_configurations_are_rejected() {
    let directory = directory();
    let stop = AtomicBool::new(true);
    let kind = std::io::ErrorKind::InvalidInput;
    let publish = Box::new(|_: &Descriptor| Ok(()));
    let target = SocketAddr::from(([127, 0, 0, 1], 9));
    let serving = Serving { name: [7; 32], key: [8; 32], paths: 1, target, publish };
    let wrong = PeerConfig { hops: 5, ..settings(&directory, 0) };
    assert_eq!(serve(&wrong, vec![serving], &stop).expect_err("five hops").kind(), kind);
    let front = || Front {
        listener: TcpListener::bind("127.0.0.1:0").expect("loopback has ports"),
        receivers: Vec::new(),
        handshake: Span::from_secs(1),
    };
    assert_eq!(socks(&wrong, front(), &stop).expect_err("five hops").kind(), kind);
    let old = Directory { start: 1000, ..directory.clone() };
    let refused = socks(&settings(&old, 0), front(), &stop).expect_err("all its epochs are over");
    assert!(refused.kind() == kind && refused.to_string().contains("not now"), "{refused}");
    let wrong = PeerConfig { guards: vec![9], ..settings(&directory, 0) };
    assert_eq!(run(&wrong, Role::Relay, &stop).expect_err("no such guard").kind(), kind);
}
