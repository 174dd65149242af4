//! Overlays with relays that have several addresses and transports, and that change their keys.

use std::time::Duration;

use tidegate_control::units::Span;
use tidegate_net::clock;

use super::roles::{Overlay, ask, ask_as, greeter};
use super::skipped;

/// Every circuit is a new one. The client asks the directory each half minute, and when a circuit fails: for a while all
/// are built with keys that are not announced any more.
#[test]
fn circuits_are_built_while_relays_renew_their_keys() {
    let lifetimes =
        "[key-lifetimes]\nonion = \"6 s\"\nonion-grace = \"6 s\"\nsigning = \"8 s\"\nlink = \"3 s\"\n";
    let overlay = Overlay::of_three_with("renewed", [lifetimes; 3], "");
    let client = overlay.listening().pop().unwrap();
    let port = greeter();
    let renewed = |key: &str| {
        let event = format!("\"event\":\"renewed\",\"key\":\"{key}\"");
        overlay.lines().iter().filter(|line| line.contains(&event)).count()
    };
    let (mut asked, mut failed) = (0, 0);
    while renewed("onion") < 6 || renewed("signing") < 3 || renewed("link") < 6 {
        // A pause of the machine may outlast the grace of a key, so one request may fail. The next one, over a new circuit
        // with the keys of that time, must not.
        let user = |again: &str| ask_as(&format!("{asked}{again}"), &client, "localhost", port);
        let began = clock::now();
        if user("") != (0, b"hello".to_vec()) {
            failed += 1;
            while user("again") != (0, b"hello".to_vec()) {
                assert!(clock::now().since(began) < Span::from_secs(10), "{:#?}", overlay.lines());
            }
        }
        asked += 1;
        std::thread::sleep(Duration::from_millis(100));
        assert!(asked < 600, "{:#?}", overlay.lines());
    }
    assert!(failed <= 1, "{failed} of {asked} failed");
    assert!(!overlay.lines().iter().any(|line| line.contains("not renewed")));
    let keys = std::fs::read_to_string(overlay.at("a")).unwrap();
    assert!(keys.contains("onion-key-since = ") && keys.contains("previous-until = "));
}

/// The third relay does not support it, so its neighbours use TLS.
#[test]
fn neighbours_meet_by_quic_where_both_speak_it() {
    let quic = "transport = \"quic\"";
    let overlay = Overlay::of_three_with("quic", [quic, quic, ""], quic);
    let client = overlay.listening().pop().unwrap();
    let port = greeter();
    for _ in 0..5 {
        assert_eq!(ask(&client, "localhost", port), (0, b"hello".to_vec()));
    }
    let lines = overlay.lines();
    for event in ["QUIC connection", "connection"] {
        let event = format!("\"event\":\"{event}\"");
        assert!(lines.iter().any(|line| line.contains(&event)), "{event}: {lines:#?}");
    }
}

/// By IPv6 alone, and by both: over the first of two relays extend circuits, clients connect by IPv6.
#[test]
fn an_overlay_is_reached_by_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skipped::skipped("an overlay is reached by IPv6", "IPv6");
    }
    let port = greeter();
    let both = "[\"127.0.0.1:0\", \"[::1]:0\"]";
    for (name, at, system) in [
        ("v6", ["[::1]:0", "\"[::1]:0\""], ""),
        ("v6quic", ["[::1]:0", "\"[::1]:0\""], "transport = \"quic\""),
        ("both", ["127.0.0.1:0", both], "transport = \"quic\""),
    ] {
        let overlay = Overlay::of_three_at(name, at, [system; 3], system);
        let client = overlay.listening().pop().unwrap();
        for user in ["a", "b"] {
            assert_eq!(ask_as(user, &client, "localhost", port), (0, b"hello".to_vec()), "{name}");
        }
        let lines = overlay.lines();
        let quic = lines.iter().any(|line| line.contains("\"event\":\"QUIC connection\""));
        assert_eq!(quic, !system.is_empty(), "{name}: {lines:#?}");
    }
}
