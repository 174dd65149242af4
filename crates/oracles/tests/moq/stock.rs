//! A stock publisher and a stock subscriber: `moq-net` over `web-transport-quinn` or plain QUIC.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moq_net::track::Subscription;
use moq_net::{Client, broadcast, origin, track};
use quinn::crypto::rustls::QuicClientConfig;
use tidegate_net::stream::moq::{BROADCAST, Edge, TRACK};
use tidegate_net::tls;
use tokio::task::{JoinHandle, spawn_local};
use url::Url;
use web_transport_quinn::proto::ConnectRequest;
use web_transport_quinn::{ClientBuilder, Session};

/// How a client connects.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// Over HTTP/3, as browsers do, with these versions on offer.
    WebTransport(&'static [&'static str]),
    /// Over QUIC with this ALPN protocol.
    Quic(&'static str),
}

/// A QUIC connection with this ALPN protocol.
pub async fn quic(edge: &Edge, protocol: &str) -> Result<quinn::Connection, quinn::ConnectionError> {
    let mut crypto = (*tls::any_server().unwrap()).clone();
    crypto.alpn_protocols = vec![protocol.into()];
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto).unwrap()));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.connect_with(config, edge.address, "localhost").unwrap().await
}

async fn session(edge: &Edge, way: Way) -> Session {
    match way {
        Way::Quic(protocol) => Session::raw(quic(edge, protocol).await.unwrap()),
        Way::WebTransport(versions) => {
            let hashes = vec![edge.certificate.to_vec()];
            let client = ClientBuilder::new().with_server_certificate_hashes(hashes).unwrap();
            let url: Url = format!("https://{}/", edge.address).parse().unwrap();
            let versions = versions.iter().map(|version| (*version).to_owned());
            client.connect(ConnectRequest::new(url).with_protocols(versions)).await.unwrap()
        }
    }
}

/// A session, with the tasks that drive it.
pub struct Stock {
    /// Dropping it closes the connection.
    _session: moq_net::Session,
    drivers: Vec<JoinHandle<moq_net::Error>>,
}

impl Stock {
    /// Whether the session goes on.
    pub fn is_open(&self) -> bool {
        self.drivers.iter().all(|driver| !driver.is_finished())
    }

    /// Stops driving the session without a word: its connection stays open.
    pub fn freeze(&self) {
        self.drivers.iter().for_each(JoinHandle::abort);
    }
}

fn origin() -> (origin::Producer, JoinHandle<moq_net::Error>) {
    let (origin, driver) = origin::Producer::new(origin::Config::default());
    (origin, spawn_local(moq_net::time::run(driver)))
}

async fn start(edge: &Edge, way: Way, client: Client, own: JoinHandle<moq_net::Error>) -> Stock {
    #[expect(clippy::disallowed_methods, reason = "real sockets")]
    let now = Instant::now();
    let (session, driver) = client.connect(now, session(edge, way).await).await.unwrap();
    Stock { _session: session, drivers: vec![own, spawn_local(moq_net::time::run(driver))] }
}

/// A publisher with the broadcast and the track.
pub async fn publish(edge: &Edge, way: Way) -> (Stock, broadcast::Producer, track::Producer) {
    let (origin, driver) = origin();
    let broadcast = origin.publish(BROADCAST, origin::Route::default()).unwrap();
    let track = broadcast.create_track(TRACK, track::Info::default()).unwrap();
    (start(edge, way, Client::new().with_publisher(&origin), driver).await, broadcast, track)
}

/// A subscriber to the track.
pub async fn subscribe(edge: &Edge, way: Way) -> (Stock, track::Ordered) {
    let (origin, driver) = origin();
    let consumer = origin.consume();
    let stock = start(edge, way, Client::new().with_subscriber(origin), driver).await;
    let broadcast = consumer.routed_broadcast(BROADCAST).await.unwrap();
    let subscription = Subscription::default().with_max_age(Duration::from_secs(5));
    let track = broadcast.track(TRACK).unwrap().subscribe(subscription).await.unwrap();
    (stock, track.ordered())
}
