//! The directory of an overlay ends, and another process continues with its key and its file of relays.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ed25519_dalek::SigningKey;
use tidegate_control::units::Span;
use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::live::authority::{self, Event, RelayFile};
use tidegate_net::live::client::{self, ClientConfig};
use tidegate_net::live::directory::{self, Admission, Authority, Entry};
use tidegate_net::live::fetch;
use tidegate_net::{clock, os};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::links::Config;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_local};

use crate::one_hop::on_sockets;

const TOKEN: &str = "0123456789abcdef";
const RELAYS: usize = 3;

/// A directory on sockets, and what it reported.
struct Directory {
    task: JoinHandle<()>,
    address: SocketAddr,
    events: Rc<RefCell<Vec<Event>>>,
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

async fn start(address: SocketAddr, path: &Path, is_first_run: bool) -> Directory {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (token, gate) = (Some(TOKEN.to_owned()), Gate::Private);
    let rules = Admission { allowed: Vec::new(), token, per_address: 8, gate };
    let file = Some(RelayFile { path: path.to_owned(), is_first_run });
    let events = Rc::<RefCell<Vec<Event>>>::default();
    let heard = events.clone();
    let authority = Authority::new(key(), rules, 600);
    let hear = move |event| heard.borrow_mut().push(event);
    let task = spawn_local(authority::run(authority, file, None, listener, hear));
    Directory { task, address, events }
}

impl Directory {
    /// Ends it, and starts another one at its address.
    async fn restarted(self, path: &Path) -> Directory {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        start(self.address, path, false).await
    }

    async fn post(&self, keys: &RouterKeys) {
        let entry = Entry::new("tide", "127.0.0.1:9".parse().unwrap(), keys, (1000, true, clock::unix()));
        let post = format!("token {TOKEN}\n{}\n{}\n", directory::proof(keys), entry.line());
        assert_eq!(fetch(self.address, "/relay", Some(post.as_bytes())).await.unwrap().0, 200);
    }

    /// The answer to a client: its status, and the number of relays in it.
    async fn asked(&self) -> (u16, usize) {
        let (status, _, body) = fetch(self.address, "/directory", None).await.unwrap();
        (status, relays_in(&String::from_utf8(body).unwrap()))
    }

    /// The events of a client that starts now, until it knows of relays or of no directory.
    async fn first_of_client(&self) -> client::Event {
        let socks = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let first = Rc::<RefCell<Option<client::Event>>>::default();
        let heard = first.clone();
        let on_event = Rc::new(move |event| {
            heard.borrow_mut().get_or_insert(event);
        });
        let directory = (self.address, key().verifying_key().to_bytes());
        let (config, gate) = (Config::default(), Gate::Private);
        let client = ClientConfig { directory, config, hops: RELAYS, path: None, gate };
        let client = spawn_local(client::run(client, socks, on_event));
        until(|| first.borrow().is_some()).await;
        client.abort();
        first.take().unwrap()
    }
}

fn relays_in(text: &str) -> usize {
    text.lines().filter(|line| line.contains("relay tide ")).count()
}

async fn until(is_met: impl Fn() -> bool) {
    let end = clock::now() + Span::from_secs(20);
    while !is_met() {
        assert!(clock::now() < end);
        clock::until(clock::now() + Span::from_millis(20)).await;
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tidegate-{test}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_that_restarts_lists_its_relays_at_once() {
    on_sockets(async {
        let folder = Folder::new("restart");
        let path = folder.0.join("directory.key.relays");
        let directory = start("127.0.0.1:0".parse().unwrap(), &path, true).await;
        let keys: [RouterKeys; RELAYS] = std::array::from_fn(|_| RouterKeys::generate(&mut fill));
        for keys in &keys {
            directory.post(keys).await;
        }
        let stored = || fs::read_to_string(&path).is_ok_and(|text| relays_in(&text) == RELAYS);
        until(stored).await;
        assert_eq!(os::open_to_others(&fs::metadata(&path).unwrap()).unwrap(), None, "only for its owner");
        let directory = directory.restarted(&path).await;
        assert_eq!(directory.first_of_client().await, client::Event::Directory(RELAYS));
        assert_eq!(directory.asked().await, (200, RELAYS));
        assert_eq!(*directory.events.borrow(), [Event::Restored(RELAYS)]);
        // The relays announce themselves as before.
        directory.post(&keys[0]).await;
        assert_eq!(directory.asked().await, (200, RELAYS));
    });
}

#[test]
fn a_directory_without_its_list_gives_clients_none_until_relays_have_announced_themselves() {
    on_sockets(async {
        let folder = Folder::new("restart-without");
        let path = folder.0.join("directory.key.relays");
        let mut directory = start("127.0.0.1:0".parse().unwrap(), &path, true).await;
        let keys = RouterKeys::generate(&mut fill);
        directory.post(&keys).await;
        until(|| fs::read_to_string(&path).is_ok_and(|text| relays_in(&text) == 1)).await;
        let text = fs::read_to_string(&path).unwrap();
        for (what, wrong) in [
            ("the signature does not verify", Some(text.replace("relay tide", "relay tidy"))),
            ("is malformed", Some(text[..text.len() / 2].to_owned())),
            ("No such file", None),
        ] {
            match &wrong {
                Some(wrong) => fs::write(&path, wrong).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            directory = directory.restarted(&path).await;
            directory.post(&keys).await;
            assert_eq!(directory.asked().await.0, 503, "{what}");
            assert!(matches!(directory.first_of_client().await, client::Event::NoDirectory(_)));
            let events = directory.events.borrow().clone();
            let Some(Event::NotRestored(why)) = events.first() else { panic!("{events:?}") };
            assert!(why.contains(what) && why.contains(&path.display().to_string()), "{why}");
            // It is kept for a look: only a list with the relays of now replaces it.
            assert_eq!(fs::read_to_string(&path).ok(), wrong);
        }
    });
}
