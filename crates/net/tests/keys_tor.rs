//! Relays renew their keys while stock tor's client builds circuits over them. Runs where tor is installed.

use crate::{a_relay, skipped};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_control::units::Span;
use tidegate_net::identity::fill;
use tidegate_net::live::relay::Event;
use tidegate_net::live::renewal::{Change, Keys};
use tidegate_net::private_tor::{self, Network};
use tidegate_net::{clock, ports};
use tidegate_proto::crypto::KeyLifetimes;
use tidegate_proto::crypto::cert::RouterKeys;

/// A vote every 10 s, and a client that fetches up to 10 s after it: by then it must know the new key.
const LIFETIMES: KeyLifetimes = KeyLifetimes {
    onion: Span::from_secs(30),
    onion_grace: Span::from_secs(30),
    signing: Span::from_secs(20),
    link: Span::from_secs(5),
};

type Said = Arc<Mutex<Vec<(&'static str, Change)>>>;

/// Runs the relays until the test ends.
fn relays(authority: SocketAddr, said: Said) {
    let keys = || Keys { lifetimes: LIFETIMES, ..RouterKeys::generate(&mut fill).into() };
    a_relay::serve_in_tor(authority, keys, move |name, event| {
        if let Event::Keys(change) = event {
            said.lock().unwrap().push((name, change));
        }
    });
}

/// A server's answer through tor, over a circuit for that user only.
fn ask(socks: SocketAddr, user: &str, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(socks)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let named = [&[1, user.len() as u8], user.as_bytes(), &[1, b'x']].concat();
    let wanted = [&[5, 1, 0, 1, 127, 0, 0, 1], &port.to_be_bytes()[..]].concat();
    for (said, answered) in [(&[5, 1, 2][..], 2), (&named, 2), (&wanted, 10)] {
        stream.write_all(said)?;
        stream.read_exact(&mut [0; 10][..answered])?;
    }
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

#[test]
#[ignore = "slow: make test-all"]
fn stock_tor_builds_circuits_while_relays_renew_their_keys() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("stock tor builds circuits while relays renew their keys", "tor");
    }
    let directory = std::env::temp_dir().join(format!("tidegate-keys-tor-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 1).unwrap();
    network.start("").unwrap();
    let said = Said::default();
    relays(network.authority(), said.clone());
    network.wait_for(&a_relay::IN_TOR.map(|name| format!("\nr {name} "))).unwrap();
    let socks = ports::free().unwrap();
    let only = ["EntryNodes", "MiddleNodes", "ExitNodes"]
        .map(|nodes| format!("{nodes} {}\n", a_relay::IN_TOR.join(",")));
    network.run("client", &format!("SocksPort {socks}\nClientOnly 1\n{}", only.concat())).unwrap();
    while !network.log("client").contains("Bootstrapped 100%") {
        std::thread::sleep(Duration::from_millis(100));
    }

    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        server.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"hello")));
    });
    let times = |what: Change| {
        let said = said.lock().unwrap();
        let count = |relay| said.iter().filter(|(name, change)| *name == relay && *change == what).count();
        a_relay::IN_TOR.map(count).into_iter().min().unwrap()
    };
    // After two renewals, the first keys are no longer accepted.
    let (mut asked, end) = (0, clock::now() + Span::from_secs(120));
    while times(Change::Onion) < 2 {
        assert_eq!(ask(socks, &asked.to_string(), port).unwrap(), "hello", "after {asked} circuits");
        asked += 1;
        assert!(clock::now() < end, "{said:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(ask(socks, "last", port).unwrap(), "hello");
    assert!(times(Change::Signing) >= 2 && times(Change::Link) >= 5, "{said:?}");
    let words = ["protocol", "Received", "cell", "AUTHENTICATE", "circuit", "TLS", "OpenSSL", "ertificate"];
    let mut warnings = network.warnings();
    // The authority does not have a consensus in the first seconds.
    warnings.retain(|line| words.iter().any(|word| line.contains(word)) && !line.contains("status code 404"));
    eprintln!("{asked} circuits, {} warnings", warnings.len());
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(warnings.is_empty(), "{warnings:#?}");
}
