//! A relay renews its keys while circuits come and go.

use crate::{a_relay, one_hop};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use one_hop::{OneHop, on_sockets};
use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::{hex, random};
use tidegate_net::link::Carrier;
use tidegate_net::live::relay::{Announce, Event, RelayConfig, run};
use tidegate_net::live::renewal::{Change, Keys};
use tidegate_net::live::{Links, keys};
use tidegate_net::overlay::Dial as _;
use tidegate_proto::crypto::{KeyLifetimes, Router, SharedNames};
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("tidegate-renewed-{}", hex(&random::<8>())));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn keys(&self) -> PathBuf {
        self.0.join("relay.keys")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The current onion key of a file.
fn onion(path: &Path) -> [u8; 32] {
    keys::load(path, clock::unix()).unwrap().onion()
}

/// A relay with the keys of that file, and its events.
async fn relay(
    path: &Path,
    lifetimes: KeyLifetimes,
    transport: Transport,
    announce: Announce,
) -> (Router, Rc<RefCell<Vec<Change>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = keys::load(path, clock::unix()).unwrap();
    let known = Router { address, fingerprint: router.fingerprint(), ed25519: Some(router.ed25519()) };
    let settings = RelayConfig {
        config: Config { transport, limits: Some(Limits::default()), ..Config::default() },
        announce,
        ..a_relay::settings(Keys { router, file: Some(path.into()), lifetimes }, address)
    };
    let said = Rc::<RefCell<Vec<Change>>>::default();
    let heard = said.clone();
    spawn_local(async move {
        let (_orders, taken) = mpsc::channel(1);
        let hear = move |event| {
            if let Event::Keys(change) = event {
                heard.borrow_mut().push(change);
            }
        };
        run(settings, vec![listener], taken, &hear).await
    });
    (known, said)
}

/// Waits until the relay has reported this change `times` times.
async fn wait_for(said: &RefCell<Vec<Change>>, what: Change, times: usize) {
    let end = clock::now() + Span::from_secs(60);
    while said.borrow().iter().filter(|change| **change == what).count() < times {
        assert!(clock::now() < end, "{what:?} is not among {:?}", said.borrow());
        clock::until(clock::now() + Span::from_millis(10)).await;
    }
}

fn seconds(onion: u64, onion_grace: u64, signing: u64, link: u64) -> KeyLifetimes {
    let [onion, onion_grace, signing, link] = [onion, onion_grace, signing, link].map(Span::from_secs);
    KeyLifetimes { onion, onion_grace, signing, link }
}

#[test]
fn circuits_survive_a_change_of_onion_keys() {
    on_sockets(async {
        let folder = Folder::new();
        let first = keys::create(&folder.keys()).unwrap().onion();
        let (router, said) =
            relay(&folder.keys(), seconds(6, 4, 60, 60), Transport::Vanilla, Announce::None).await;
        let client = OneHop::new(router, Transport::Vanilla);
        assert_eq!(client.builds(first).await, [true; 2]);
        let standing = *client.ends.borrow().keys().next().unwrap();

        wait_for(&said, Change::Onion, 1).await;
        let second = onion(&folder.keys());
        assert_ne!(first, second, "it is on disk by the time that anybody hears of it");
        for key in [first, second] {
            assert_eq!(client.builds(key).await, [true; 2], "clients hear of it later");
        }
        wait_for(&said, Change::Forgotten, 1).await;
        assert_eq!(client.builds(first).await, [false; 2]);
        assert_eq!(client.builds(second).await, [true; 2]);

        wait_for(&said, Change::Onion, 2).await;
        assert_eq!(client.builds(second).await, [true; 2]);
        assert!(client.ends.borrow()[&standing], "who stands is not touched");
        assert!(!said.borrow().iter().any(|change| matches!(change, Change::Failed(_))), "{said:?}");
    });
}

/// SHA-256 of the certificate that a relay presents by TLS, and whether QUIC was used afterwards.
async fn meets(router: Router) -> (Vec<u8>, bool) {
    let names = SharedNames::default();
    let id = names.borrow_mut().keep(router);
    let links = Rc::new(Links::client(names, true).unwrap().with_gate(Gate::Private));
    let (carrier, ..) = links.connect(&router, None).await.unwrap();
    let Carrier::Tls(stream) = carrier else { panic!("it is TLS") };
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    (certificate, matches!(links.dial(id).await.unwrap().carrier, Carrier::Quic(_)))
}

#[test]
fn renewed_certificates_are_presented_by_tls_and_quic() {
    on_sockets(async {
        let folder = Folder::new();
        keys::create(&folder.keys()).unwrap();
        let (router, said) =
            relay(&folder.keys(), seconds(60, 60, 9, 4), Transport::Quic, Announce::None).await;
        let mut shown = vec![meets(router).await];
        for (change, times) in [(Change::Link, 1), (Change::Signing, 1)] {
            wait_for(&said, change, times).await;
            shown.push(meets(router).await);
        }
        assert!(shown.iter().all(|(_, quic)| *quic), "whoever is met proves itself by the certificate shown");
        assert!(shown.windows(2).all(|pair| pair[0].0 != pair[1].0));
    });
}

/// An authority that accepts all descriptors, and records their onion key and time. It does not have a consensus.
async fn authority(seen: Rc<RefCell<Vec<(String, String)>>>, listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut text = String::new();
        let is_whole = |text: &str| {
            let asks = text.starts_with("GET ") && text.contains("\r\n\r\n");
            // A descriptor and its extra-info document.
            asks || text.matches("-----END SIGNATURE-----\n").count() == 2
        };
        while !is_whole(&text) {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        if text.starts_with("GET ") {
            stream.write_all(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            continue;
        }
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        seen.borrow_mut().push((line("ntor-onion-key "), line("published ")));
        stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    }
}

#[test]
fn a_new_key_is_published_at_once_with_a_later_time() {
    on_sockets(async {
        let folder = Folder::new();
        keys::create(&folder.keys()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at: SocketAddr = listener.local_addr().unwrap();
        let seen = Rc::<RefCell<Vec<(String, String)>>>::default();
        spawn_local(authority(seen.clone(), listener));
        // The first authority is down.
        let down = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let announce = Announce::Tor(vec![down, at]);
        let (_, said) = relay(&folder.keys(), seconds(2, 2, 60, 60), Transport::Vanilla, announce).await;
        wait_for(&said, Change::Onion, 2).await;
        // The last key is published after the relay has reported it.
        let end = clock::now() + Span::from_secs(60);
        while seen.borrow().len() < 3 && clock::now() < end {
            clock::until(clock::now() + Span::from_millis(10)).await;
        }
        let seen = seen.borrow();
        assert!(seen.len() >= 3, "it tells nothing else for a quarter of an hour: {seen:?}");
        assert!(seen.windows(2).all(|pair| pair[0].0 != pair[1].0 && pair[0].1 < pair[1].1), "{seen:?}");
    });
}

#[test]
fn a_key_that_expired_while_the_relay_was_off_is_replaced_before_publication() {
    on_sockets(async {
        let folder = Folder::new();
        let kept = keys::create(&folder.keys()).unwrap();
        let (long_ago, lifetimes) = (clock::unix() - 1000, seconds(500, 100, 60, 60));
        let then = kept.onion_keys().advanced(long_ago, &lifetimes, None).unwrap();
        keys::replace(&folder.keys(), &kept, &then).unwrap();
        let (router, said) = relay(&folder.keys(), lifetimes, Transport::Vanilla, Announce::None).await;
        let client = OneHop::new(router, Transport::Vanilla);
        assert_eq!(client.builds(kept.onion()).await, [true; 2], "clients may know it yet");
        assert_eq!(*said.borrow(), [Change::Onion]);
        assert_ne!(onion(&folder.keys()), kept.onion());
    });
}

#[test]
fn a_key_that_cannot_be_stored_is_not_used() {
    on_sockets(async {
        let folder = Folder::new();
        let kept = keys::create(&folder.keys()).unwrap();
        // The temporary file cannot be written.
        std::fs::create_dir(folder.0.join("relay.keys.new")).unwrap();
        let lifetimes = seconds(1, 1, 60, 60);
        let (router, said) = relay(&folder.keys(), lifetimes, Transport::Vanilla, Announce::None).await;
        let client = OneHop::new(router, Transport::Vanilla);
        clock::until(clock::now() + Span::from_secs(3)).await;
        assert_eq!(client.builds(kept.onion()).await, [true; 2]);
        let said = said.borrow();
        assert!(
            matches!(&said[..], [Change::Failed(why), ..] if why.contains("relay.keys cannot be replaced")),
            "{said:?}"
        );
    });
}
