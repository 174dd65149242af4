//! Memory that idle connections and circuits take in a relay.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::random;
use tidegate_net::live::{Links, keys};
use tidegate_net::overlay::{Handle, Overlay, Owner, Unlimited};
use tidegate_proto::cell::RelayId;
use tidegate_proto::client::Client;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::crypto::{Encrypted, Router, SharedNames, Target, Wishes};
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Output};
use tokio::task::LocalSet;

use super::{Role, skipped, tidegate};

const CONNECTIONS: usize = 500;
const CIRCUITS: usize = 5000;
/// In this a circuit is found idle twice.
const REST: Span = Span::from_millis(3500);

type Node = Overlay<Client<Encrypted>, Unlimited, Rc<Links>>;

/// Counts of a client: built circuits, and streams that the relay refused.
#[derive(Default)]
struct Seen {
    built: RefCell<Vec<CircuitKey>>,
    refused: Cell<usize>,
}

/// A client that knows a relay.
fn client(router: Router, onion: [u8; 32]) -> (Node, RelayId, Rc<Seen>) {
    let names = SharedNames::default();
    let relay = names.borrow_mut().keep(router);
    let links = Rc::new(Links::client(names.clone(), false).unwrap().with_gate(Gate::Private));
    let encrypted = Encrypted::new(None, BTreeMap::new(), random()).with_names(names);
    let all = Rc::<Seen>::default();
    let seen = all.clone();
    let owner = move |_: Handle<_, _, _>| -> Owner<Client<Encrypted>> {
        Box::new(move |_, _, output| match output {
            Output::CircuitBuilt(key) => seen.built.borrow_mut().push(key),
            Output::CircuitClosed(_) => panic!("a circuit is gone"),
            Output::StreamClosed(..) => seen.refused.set(seen.refused.get() + 1),
            _ => {}
        })
    };
    let node = Overlay::with_dial(Client::new(encrypted, Config::default()), Unlimited, links, owner);
    let public = RelayPublic { identity: router.fingerprint, onion };
    let modern = router.ed25519.map(|ed25519| (ed25519, Wishes { congestion_control: true, cgo: true }));
    node.with(|node, _| node.onion().learn(relay, public, modern));
    (node, relay, all)
}

async fn pause(span: Span) {
    clock::until(clock::now() + span).await;
}

/// Measures again, for at most 30 s, until it is below the bound: on a loaded machine, idleness is noticed later.
async fn below(bound: f64, measure: impl Fn() -> f64) -> f64 {
    let end = clock::now() + Span::from_secs(30);
    loop {
        let measured = measure();
        if measured < bound || clock::now() > end {
            return measured;
        }
        pause(Span::from_millis(500)).await;
    }
}

/// Most bytes that a connection takes, and a circuit.
const OF_A_CONNECTION: f64 = 65536.0;
const OF_A_CIRCUIT: f64 = 2048.0;

/// Bytes that a connection takes of a relay's memory.
async fn of_a_connection(router: Router, memory: impl Fn() -> f64) -> f64 {
    let links = Links::client(SharedNames::default(), false).unwrap().with_gate(Gate::Private);
    let mut open = Vec::new();
    // The first ones also take memory that is needed only once.
    for _ in 0..50 {
        open.push(links.connect(&router, None).await.unwrap());
    }
    let before = memory();
    for _ in 0..CONNECTIONS {
        open.push(links.connect(&router, None).await.unwrap());
    }
    pause(Span::from_millis(300)).await;
    below(OF_A_CONNECTION, || (memory() - before) / CONNECTIONS as f64).await
}

/// And a circuit that was used, and is idle since.
async fn of_a_circuit(router: Router, onion: [u8; 32], memory: impl Fn() -> f64) -> f64 {
    let (node, id, seen) = client(router, onion);
    let Seen { built, refused } = &*seen;
    let build = async |all: usize| {
        while built.borrow().len() < all {
            node.with(|node, now| node.build(now, vec![id]));
            let begun = built.borrow().len();
            while built.borrow().len() == begun {
                pause(Span::from_micros(200)).await;
            }
            // The policy lets nothing out.
            let (key, target) = (built.borrow()[begun], Target::parse("192.0.2.1:80", 0).unwrap());
            node.with(|node, now| node.open(now, key, target)).unwrap();
            while refused.get() == begun {
                pause(Span::from_micros(200)).await;
            }
        }
        pause(REST).await;
    };
    build(200).await;
    let before = memory();
    build(200 + CIRCUITS).await;
    below(OF_A_CIRCUIT, || (memory() - before) / CIRCUITS as f64).await
}

#[test]
#[ignore = "slow: make test-all"]
fn idle_circuits_take_two_kibibytes_and_idle_connections_64_at_most() {
    let directory = std::env::temp_dir().join(format!("tidegate-memory-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    assert!(tidegate(&["relay", "--keygen", &at("relay.keys")]).status.success());
    let keys = keys::load(&directory.join("relay.keys"), clock::unix()).unwrap();
    let start = |limits: &str| {
        let config =
            format!("nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n[limits]\n{limits}");
        std::fs::write(at("relay.toml"), config).unwrap();
        let mut relay = Role::relay(&at("relay.toml"));
        let address = relay.wait("listening")["address"].as_str().unwrap().parse().unwrap();
        (relay, Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) })
    };
    let memory = |relay: &Role| tidegate_kernel::memory_of(relay.process.id()).map(|bytes| bytes as f64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = LocalSet::new();
    let (relay, router) = start("");
    if memory(&relay).is_none() {
        return skipped::skipped("memory of idle circuits", "/proc");
    }
    let used = || memory(&relay).unwrap();
    let connection = runtime.block_on(local.run_until(of_a_connection(router, used)));
    let (relay, router) = start("without-circuits = \"2 s\"\nhandshakes-per-second = 100000\n");
    let used = || memory(&relay).unwrap();
    let circuit = runtime.block_on(local.run_until(of_a_circuit(router, keys.onion(), used)));
    drop(relay);
    std::fs::remove_dir_all(&directory).unwrap();
    eprintln!("an idle connection takes {connection:.0} bytes, an idle circuit {circuit:.0}");
    assert!(connection < OF_A_CONNECTION, "a connection: {connection:.0} bytes");
    assert!(circuit < OF_A_CIRCUIT, "a circuit: {circuit:.0} bytes");
}
