//! A relay without users tests its bandwidth over relays of stock tor. Runs where tor is installed.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::identity::{fill, hex};
use tidegate_net::live::fetch;
use tidegate_net::live::relay::{Announce, Event, RelayConfig, run};
use tidegate_net::private_tor::{self, Network};
use tidegate_proto::crypto::cert::RouterKeys;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::one_hop::on_sockets;
use crate::{a_relay, skipped};

/// The limit of the relay, bytes per second: the lowest that `[tor]` allows.
const RATE: u64 = 75 << 10;
/// Stock relays build no circuits for onion services. In a network of four, those return to their guard, which tor warns of.
const IDLE: &str = "__DisablePredictedCircuits 1\n";

#[test]
#[ignore = "slow: make test-all"]
fn a_new_relay_beside_stock_tor_observes_its_bandwidth_without_users() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("a new relay beside stock tor observes its bandwidth", "tor");
    }
    let directory = std::env::temp_dir().join(format!("tidegate-self-test-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 1).unwrap();
    network.start(IDLE).unwrap();
    let stock = ["stock0", "stock1", "stock2"];
    for name in stock {
        let relay = network.relay(name).unwrap();
        network.run_relay(&relay, &format!("{}{IDLE}", private_tor::RELAY)).unwrap();
    }
    network.wait_for(&stock.map(|name| format!("\nr {name} "))).unwrap();
    let keys = RouterKeys::generate(&mut fill);
    let fingerprint = hex(&keys.fingerprint());
    let authority = network.authority();
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let heard = events.clone();
    let observed = on_sockets(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut settings = RelayConfig {
            nickname: "tide".into(),
            exit: a_relay::open_exit(Some(authority)),
            announce: Announce::Tor(vec![authority]),
            threads: NonZeroUsize::new(2).unwrap(),
            ..a_relay::settings(keys, address)
        };
        settings.config.bandwidth = RATE as f64;
        spawn_local(async move {
            let (_orders, taken) = mpsc::channel(1);
            run(settings, vec![listener], taken, &|event| heard.lock().unwrap().push(event)).await
        });
        let (mut seen, end) = (Vec::new(), clock::now() + Span::from_secs(120));
        loop {
            let path = format!("/tor/server/fp/{fingerprint}");
            let answer = fetch(authority, &path, None).await;
            let text = answer.map(|(_, _, body)| String::from_utf8(body).unwrap()).unwrap_or_default();
            let stated = text.lines().find_map(|line| line.strip_prefix("bandwidth ")?.rsplit(' ').next());
            let observed: Option<u64> = stated.map(|number| number.parse().unwrap());
            if observed.is_some() && seen.last() != Some(&observed) {
                seen.push(observed);
            }
            if let Some(observed @ 1..) = observed {
                assert_eq!(seen, [Some(0), Some(observed)]);
                return observed;
            }
            assert!(clock::now() < end, "{seen:?} {:?}", events.lock().unwrap());
            clock::until(clock::now() + Span::from_millis(200)).await;
        }
    });
    let events = events.lock().unwrap().clone();
    eprintln!("observed {observed} B/s; {events:?}");
    // 1,000 cells of 514 bytes in a window of 10 s, and the cells that build circuits.
    assert!((45_000..60_000).contains(&observed), "{observed} B/s");
    assert!(events.contains(&Event::Tested(4)), "{events:?}");
    // Its weight for clients, kB/s.
    let weight = || {
        let consensus = network.consensus();
        let (_, entry) = consensus.split_once("\nr tide ")?;
        entry
            .lines()
            .find_map(|line| line.strip_prefix("w Bandwidth=")?.split(' ').next()?.parse::<u64>().ok())
    };
    let end = clock::now() + Span::from_secs(60);
    while weight() != Some(observed / 1000) {
        assert!(clock::now() < end, "{:?}", weight());
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let words = ["protocol", "Received", "cell", "AUTHENTICATE", "circuit", "TLS", "OpenSSL", "ertificate"];
    let mut warnings = network.warnings();
    // The authority does not have a consensus in the first seconds.
    warnings.retain(|line| words.iter().any(|word| line.contains(word)) && !line.contains("status code 404"));
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(warnings.is_empty(), "{warnings:#?}");
}
