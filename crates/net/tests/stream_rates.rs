//! Rates of streams in XON (proposal 324): slow applications and slow servers.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::{Bytes, Span, Time};
use tidegate_net::clock;
use tidegate_net::live::relay::RelayConfig;
use tidegate_proto::control::{DrainRates, StreamFlow};
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::node::{CircuitKey, Node as _, StreamKey};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::task::spawn_local;

use crate::a_relay;
use crate::one_hop::{OneHop, on_sockets};
use crate::server::server;

/// A server that sends without end, and the bytes that it has sent. The kernel keeps few of them.
async fn endless() -> (SocketAddr, Rc<Cell<u64>>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(16 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1024).unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Rc::<Cell<u64>>::default());
    let count = sent.clone();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let count = count.clone();
            spawn_local(async move {
                while tcp.write_all(&[7; 4096]).await.is_ok() {
                    count.set(count.get() + 4096);
                }
            });
        }
    });
    (address, sent)
}

/// An application that reads so many bytes per second of a stream.
struct Application {
    stream: StreamKey,
    rate: u64,
    read: RefCell<f64>,
    at: Cell<Time>,
}

impl Application {
    fn new(stream: StreamKey, rate: u64) -> Application {
        Application { stream, rate, read: RefCell::new(0.0), at: Cell::new(clock::now()) }
    }

    /// Reads. Returns the bytes received so far, and those that it has not read.
    fn read(&self, client: &OneHop) -> (u64, u64) {
        let received = client.received.borrow().get(&self.stream).map_or(0, Vec::len) as u64;
        let now = clock::now();
        let may = now.since(self.at.replace(now)).as_secs_f64() * self.rate as f64;
        let mut read = self.read.borrow_mut();
        // It hears of the arrivals before it reads.
        let (arrived, left) = (received - *read as u64, (received as f64 - *read - may).max(0.0));
        *read = received as f64 - left;
        for bytes in [arrived, left as u64] {
            client.node.with(|node, now| node.backlog(now, self.stream, bytes, bytes));
        }
        (received, left as u64)
    }
}

async fn exit(change: impl FnOnce(&mut RelayConfig)) -> a_relay::Running {
    a_relay::start(|settings| {
        settings.exit = a_relay::open_exit(None);
        change(settings);
    })
    .await
}

/// A client with a circuit with congestion control.
async fn connected(relay: &a_relay::Running, config: Config) -> (OneHop, CircuitKey) {
    let client = OneHop::with(relay.router, config);
    assert_eq!(client.builds(relay.onion).await, [true; 2]);
    // The later circuit is the one by ntor-v3.
    let key = *client.ends.borrow().keys().next_back().unwrap();
    (client, key)
}

#[test]
fn an_exit_reads_as_fast_as_a_slow_application() {
    const RATE: u64 = 150_000;
    on_sockets(async {
        let relay = exit(|_| {}).await;
        let (client, key) = connected(&relay, Config::default()).await;
        let (server, sent) = endless().await;
        let stream = client.node.with(|node, now| node.open(now, key, server.into())).unwrap();
        let application = Application::new(stream, RATE);
        let (mut full, mut emptied, mut before) = (false, None, None);
        let (mut most, begun) = (0, clock::now());
        let (received, from_server, took) = loop {
            clock::until(clock::now() + Span::from_millis(5)).await;
            let (received, unread) = application.read(&client);
            let now = clock::now();
            assert!(now.since(begun) < Span::from_secs(60), "{received} received, {unread} unread");
            full |= unread > 244_000;
            if full && unread == 0 {
                emptied.get_or_insert(now);
            }
            let Some(emptied) = emptied else { continue };
            most = most.max(unread);
            let since = now.since(emptied);
            if since < Span::from_secs(2) {
                before = Some((received, sent.get(), now));
            } else if since >= Span::from_secs(6) {
                let (received_before, sent_before, then) = before.unwrap();
                break (received - received_before, sent.get() - sent_before, now.since(then).as_secs_f64());
            }
        };
        let rates = [received, from_server].map(|bytes| bytes as f64 / took);
        eprintln!("{rates:.0?} bytes per second for {RATE}, at most {most} unread");
        // It sends a second's bytes at once, and then as fast as they are read.
        assert!(most < 230_000, "the buffer fills no more: {most}");
        assert!((0.7..1.3).contains(&(rates[0] / RATE as f64)), "{rates:?}");
        // The kernel's buffer for the server's bytes fills and drains meanwhile (`net::live::stream::RECEIVED`).
        let kept = (rates[1] - rates[0]).abs() * took;
        assert!(kept <= f64::from(249 << 10), "{kept} bytes more or fewer than were received");
    });
}

/// A client lets its streams through at 4,000 bytes per second, and the server's data waits in the relay's kernel.
#[test]
fn streams_that_trickle_count_for_the_memory_limit() {
    const STREAMS: usize = 120;
    on_sockets(async {
        let memory = Bytes(4 << 20);
        let limits = Limits { memory, ..Limits::default() };
        let relay = exit(|settings| settings.config.limits = Some(limits)).await;
        // It states the rate after a few cells.
        let rates = DrainRates { bytes: 498, change_percent: 25, average_of: 2 };
        let stream_flow =
            StreamFlow { client_bytes: 498, grace: Span::ZERO, rates: Some(rates), ..StreamFlow::default() };
        let (client, key) = connected(&relay, Config { stream_flow, ..Config::default() }).await;
        let server = server(true).await;
        let open = || client.node.with(|node, now| node.open(now, key, server.address.into())).unwrap();
        let all: Vec<StreamKey> = (0..STREAMS).map(|_| open()).collect();
        while server.most.get() < STREAMS {
            clock::until(clock::now() + Span::from_millis(5)).await;
        }
        // XOFF, and XON with the rate of an application that reads 1,200 bytes in 0.3 s. A stream waits no longer than that.
        for unread in [1200, 0] {
            for stream in &all {
                client.node.with(|node, now| node.backlog(now, *stream, unread, unread));
            }
            clock::until(clock::now() + Span::from_millis(300)).await;
        }
        let end = clock::now() + Span::from_secs(20);
        // The kernel holds 64 to 250 KiB of a stream: at least four times the limit, until streams end.
        while server.open.get() >= STREAMS * 3 / 4 {
            assert!(clock::now() < end, "{} of {STREAMS} streams stay", server.open.get());
            clock::until(clock::now() + Span::from_millis(50)).await;
        }
    });
}
