//! A relay on loopback with settings that tests change where they need to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::live::relay::{Announce, Event, RelayConfig, Status, run};
use tidegate_net::live::renewal::Keys;
use tidegate_net::live::{Addresses, Exit, Operator, Policy};
use tidegate_proto::crypto::Router;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::links::{Config, Limits};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

/// A relay that publishes nothing, is not an exit, has the default limits, and may extend circuits on this machine.
pub fn settings(keys: impl Into<Keys>, address: impl Into<Addresses>) -> RelayConfig {
    RelayConfig {
        nickname: "relay".into(),
        address: address.into(),
        keys: keys.into(),
        config: Config { limits: Some(Limits::default()), ..Config::default() },
        exit: Exit { policy: Policy::new(Vec::new(), false, Vec::new()), directories: Vec::new() },
        extends: Gate::Private,
        announce: Announce::None,
        status: None,
        measurement: None,
        published: None,
        defences: BTreeMap::new(),
        operator: Operator::default(),
        threads: NonZeroUsize::MIN,
    }
}

/// A rate in bytes per second that relays beside stock tor have and publish as observed. A relay that has carried nothing has
/// no weight, so a network of a few relays would be too small for tor.
pub const WEIGHT: u64 = 10_000_000;

/// An exit to every address, with the directory that its directory streams reach.
pub fn open_exit(directory: Option<SocketAddr>) -> Exit {
    Exit {
        policy: Policy::new(vec!["accept *:*".parse().unwrap()], true, Vec::new()),
        directories: directory.into_iter().collect(),
    }
}

/// A relay that runs.
pub struct Running {
    pub router: Router,
    pub onion: [u8; 32],
    /// Its status page.
    pub status: SocketAddr,
}

/// Starts a relay with [`settings`] as `change` leaves them. It runs as long as the test.
pub async fn start(change: impl FnOnce(&mut RelayConfig)) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let page = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, status) = (listener.local_addr().unwrap(), page.local_addr().unwrap());
    let keys = RouterKeys::generate(&mut fill);
    let router = Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) };
    let onion = keys.onion();
    let mut settings = settings(keys, address);
    settings.status = Some(Status { listener: page, circuits: false });
    change(&mut settings);
    serve(settings, vec![listener]);
    Running { router, onion, status }
}

/// Runs a relay on these listeners as long as the test.
pub fn serve(settings: RelayConfig, listeners: Vec<TcpListener>) {
    spawn_local(async move {
        let (_orders, taken) = mpsc::channel(1);
        run(settings, listeners, taken, &|_| {}).await
    });
}

/// Names of the relays of [`serve_in_tor`].
pub const IN_TOR: [&str; 3] = ["tide0", "tide1", "tide2"];

/// Runs three exits of a private Tor network on a thread of their own until the test ends. `keys` makes the keys of each, and
/// `hear` gets its name and its events.
pub fn serve_in_tor(
    authority: SocketAddr,
    keys: impl Fn() -> Keys + Send + 'static,
    hear: impl Fn(&'static str, Event) + Clone + Send + 'static,
) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(async {
            for name in IN_TOR {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let mut settings = RelayConfig {
                    published: Some(WEIGHT),
                    nickname: name.into(),
                    exit: open_exit(Some(authority)),
                    announce: Announce::Tor(vec![authority]),
                    ..settings(keys(), address)
                };
                settings.config.bandwidth = WEIGHT as f64;
                let hear = hear.clone();
                spawn_local(async move {
                    let (_orders, taken) = mpsc::channel(1);
                    run(settings, vec![listener], taken, &|event| hear(name, event)).await
                });
            }
            std::future::pending::<()>().await;
        }));
    });
}
