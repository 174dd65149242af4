//! A relay of the overlay on sockets, among silent and malicious clients.

use crate::a_relay;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::live::Links;
use tidegate_net::live::relay::RelayConfig;
use tidegate_proto::crypto::{Router, SharedNames};
use tidegate_proto::links::Limits;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// Runs `client` against a relay with these limits.
fn against_a_relay<F: Future>(limits: Limits, client: impl FnOnce(Router) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let change = |settings: &mut RelayConfig| settings.config.limits = Some(limits);
        let router = a_relay::start(change).await.router;
        client(router).await;
    }));
}

fn client() -> Links {
    Links::client(SharedNames::default(), false).unwrap().with_gate(Gate::Private)
}

#[test]
fn silent_connections_do_not_lock_out_others() {
    against_a_relay(Limits::default(), |router| async move {
        // The relay generates its RSA key before it answers, which takes seconds on a slow machine.
        assert!(client().connect(&router, None).await.is_ok());
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(TcpStream::connect(router.address).await.unwrap());
        }
        let before = clock::now();
        assert!(client().connect(&router, None).await.is_ok());
        // The relay waits 60 s for a silent connection.
        assert!(
            clock::now().since(before) < Span::from_secs(20),
            "it did not wait for their time to be over"
        );
        assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0, "the oldest went");
    });
}

#[test]
fn connections_per_address_are_limited() {
    let limits = Limits { connections_per_address: 3, ..Limits::default() };
    against_a_relay(limits, |router| async move {
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(client().connect(&router, None).await.unwrap());
        }
        assert!(client().connect(&router, None).await.is_err());
        open.pop();
        let end = clock::now() + Span::from_secs(10);
        while client().connect(&router, None).await.is_err() {
            assert!(clock::now() < end, "a place is free again");
            clock::until(clock::now() + Span::from_millis(20)).await;
        }
    });
}
