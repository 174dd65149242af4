//! Padding of connections with clients of a Tor network.

use tidegate_control::units::Span;
use tidegate_net::live::relay::{Announce, RelayConfig};

use crate::a_relay;
use crate::faults::neighbour::{Link, Relay, good};
use crate::one_hop::on_sockets;

const CREATE2: u8 = 10;
const PADDING_NEGOTIATE: u8 = 12;
/// Longer than the longest pause, 9.5 s.
const PATIENCE: Span = Span::from_millis(10_500);

async fn relay(announce: Announce) -> Relay {
    a_relay::start(|settings: &mut RelayConfig| settings.announce = announce).await.router.into()
}

/// A link on which the client began a circuit of several hops. The relay refuses its handshake.
async fn used(relay: Relay) -> Link {
    let mut link = good(relay).await;
    link.cell(2, CREATE2, &[&[0, 2, 0, 84][..], &[7; 84]].concat()).await;
    link
}

#[test]
fn idle_connections_of_clients_are_padded_as_they_ask() {
    on_sockets(async {
        let tor = relay(Announce::Tor(Vec::new())).await;
        let other = relay(Announce::None).await;
        let padded = async { used(tor).await.padding(PATIENCE).await };
        let stopped = async {
            let mut link = used(tor).await;
            link.cell(0, PADDING_NEGOTIATE, &[0, 1, 0, 0, 0, 0]).await;
            let silence = link.padding(PATIENCE).await;
            // Both pauses 2 s; the relay's longest stays 9.5 s.
            link.cell(0, PADDING_NEGOTIATE, &[0, 2, 7, 208, 7, 208]).await;
            (silence, link.padding(PATIENCE).await)
        };
        let fetching = async {
            let mut link = good(tor).await;
            link.create().await;
            link.padding(PATIENCE).await
        };
        let elsewhere = async { used(other).await.padding(PATIENCE).await };
        let (padded, (stopped, started), fetching, elsewhere) =
            tokio::join!(padded, stopped, fetching, elsewhere);
        let pause = padded.expect("an idle connection is padded").as_secs_f64();
        assert!((1.4..9.9).contains(&pause), "{pause}");
        assert_eq!(stopped, None, "the client stopped it");
        assert!(started.is_some(), "the client started it again");
        assert_eq!(fetching, None, "a circuit of one hop fetches from the directory");
        assert_eq!(elsewhere, None, "an overlay has no padding");
    });
}
