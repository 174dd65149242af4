//! Media over QUIC: stock publishers and subscribers use Tidegate's trees as a relay.

mod stock;

use std::cell::Cell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use moq_net::{Timestamp, track};
use stock::{Way, publish, quic, subscribe};
use tidegate_control::units::{Rate, Span};
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::{Identity, unhex};
use tidegate_net::stream::moq::{self, Edge};
use tidegate_net::stream::path::Path;
use tidegate_net::stream::viewer::Screen;
use tidegate_net::stream::{server, viewer};
use tidegate_stream::signing::SharedChecks;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::skipped;

const TS: usize = 188;
const LITE: Way = Way::WebTransport(&["moq-lite-06", "moq-lite-05"]);
const DRAFT_19: Way = Way::Quic("moqt-19");

/// Runs a test that must end in time.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { timeout(Duration::from_secs(120), test).await.expect("the test ends in time") };
    LocalSet::new().block_on(&runtime, limited);
    runtime.shutdown_background();
}

/// An edge of a screen.
fn serve(screen: &Arc<Screen>) -> Edge {
    moq::serve("127.0.0.1:0".parse().unwrap(), screen, moq::Lifetimes::default(), |_| {}).unwrap()
}

async fn pause(ms: u64) {
    sleep(Duration::from_millis(ms)).await;
}

/// A picture and a tone of so many seconds with a key frame every second; `None` without ffmpeg.
fn clip(seconds: u32) -> Option<Vec<u8>> {
    let arguments = format!(
        "-v error -nostdin -f lavfi -i testsrc=size=320x240:rate=25:duration={seconds} -f lavfi -i \
         sine=duration={seconds} -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 25 -c:a aac -f mpegts -"
    );
    let output =
        Command::new("ffmpeg").args(arguments.split_whitespace()).stdin(Stdio::null()).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// Packets that differ, without a picture.
fn packets(numbers: std::ops::Range<u32>) -> Vec<u8> {
    let packet = |n: u32| {
        let mut packet = [n as u8; TS];
        packet[..8].copy_from_slice(&[0x47, 0x01, 0x00, 0x10, 0, 0, (n >> 8) as u8, n as u8]);
        packet
    };
    numbers.flat_map(packet).collect()
}

fn time(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms).unwrap()
}

/// A server that reads from a publisher. `said` holds its reports about the source.
struct Server {
    edge: Edge,
    address: std::net::SocketAddr,
    said: Arc<Mutex<Vec<String>>>,
    status: Arc<Mutex<server::Status>>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    async fn start() -> Server {
        let (said, status) = <(Arc<Mutex<Vec<String>>>, Arc<Mutex<server::Status>>)>::default();
        let machine = tidegate_stream::server::ServerConfig::new(Rate(40_000_000), 10);
        let loopback = "127.0.0.1:0".parse().unwrap();
        let input = "moq://127.0.0.1:0".parse().unwrap();
        let config = server::ServerConfig { listen: loopback, path: path(), input, machine };
        let (stop, stopped) = oneshot::channel::<()>();
        let (told, address) = oneshot::channel();
        let (say, shown) = (said.clone(), status.clone());
        spawn_local(async move {
            let ready = |address, _| told.send(address).unwrap();
            let say = move |line| say.lock().unwrap().push(line);
            let stop = async { drop(stopped.await) };
            server::run(config, Identity::generate(), shown, ready, say, stop).await.unwrap();
        });
        let address = address.await.unwrap();
        let mut server =
            Server { edge: Edge { address, certificate: [0; 32] }, address, said, status, _stop: stop };
        let line = server.says("waits for a publisher at").await;
        let words: Vec<&str> = line.split([' ', ';']).collect();
        server.edge =
            Edge { address: words[5].parse().unwrap(), certificate: unhex(words.last().unwrap()).unwrap() };
        server
    }

    /// Waits until the server has reported a line with this text.
    async fn says(&self, text: &str) -> String {
        for _ in 0..1500 {
            let found = self.said.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            if let Some(line) = found {
                return line;
            }
            pause(20).await;
        }
        panic!("not `{text}` but {:?}", self.said.lock().unwrap())
    }
}

fn path() -> Path {
    Path {
        uplink: Rate::UNLIMITED,
        delay: Span::ZERO,
        jitter: Span::ZERO,
        loss: 0.0,
        seed: 1,
        later: None,
        translated: false,
    }
}

/// A viewer in the tree of a server, its edge, and what it plays.
struct Viewer {
    screen: Arc<Screen>,
    edge: Edge,
    played: Receiver<Bytes>,
    _stop: oneshot::Sender<()>,
}

impl Viewer {
    async fn start(server: &Server) -> Viewer {
        let stamping = tidegate_stream::server::ServerConfig::controller("explicit").unwrap().stamping();
        let machine = tidegate_stream::viewer::ViewerConfig {
            token: [0; 16],
            uplink: Rate(20_000_000),
            forwards: true,
            skip_after: tidegate_stream::viewer::SKIP_AFTER,
            stamping,
            checks: SharedChecks::default(),
        };
        let config = viewer::ViewerConfig {
            server: server.address,
            fingerprint: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            path: path(),
            machine,
            conduct: viewer::Conduct::Honest,
            gate: Gate::Private,
        };
        let screen = Arc::new(Screen::default());
        let edge = serve(&screen);
        let (to, played) = sync_channel(1 << 16);
        let (stop, stopped) = oneshot::channel::<()>();
        let shown = screen.clone();
        spawn_local(async move {
            let stop = async { drop(stopped.await) };
            viewer::run(config, Identity::generate(), shown, Some(to), |said| eprintln!("{said}"), stop)
                .await
                .unwrap();
        });
        while screen.status.lock().unwrap().phase != "in" {
            pause(20).await;
        }
        Viewer { screen, edge, played, _stop: stop }
    }

    /// All that it has played.
    fn played(&self, before: &mut Vec<u8>) {
        self.played.try_iter().for_each(|bytes| before.extend_from_slice(&bytes));
    }

    /// Waits until it has played so many bytes.
    async fn plays(&self, bytes: usize) -> Vec<u8> {
        let mut played = Vec::new();
        while played.len() < bytes {
            self.played(&mut played);
            pause(20).await;
        }
        played
    }
}

/// Publishes media in groups of so many packets over about so many milliseconds.
async fn feed(track: &track::Producer, media: &[u8], packets: usize, ms: u64) {
    let chunks = media.chunks(packets * TS);
    let (count, mut sent) = (chunks.len() as u64, 0);
    for chunk in chunks {
        let mut group = track.append_group().unwrap();
        for frame in chunk.chunks(1000) {
            group.write_frame(time(sent * ms / count), Bytes::copy_from_slice(frame)).unwrap();
        }
        group.finish().unwrap();
        sent += 1;
        pause(ms / count).await;
    }
}

/// The result of `event`. It is `None` if all was `fed` and then nothing comes within this number of half seconds.
async fn unless_silent<T>(event: impl Future<Output = T>, fed: &Cell<bool>, halves: u32) -> Option<T> {
    let mut event = std::pin::pin!(event);
    let mut silent = 0;
    // A pause of the machine counts as one half second, however long it is.
    while silent < halves {
        let over = fed.get();
        match timeout(Duration::from_millis(500), event.as_mut()).await {
            Ok(happened) => return Some(happened),
            Err(_) => silent += u32::from(over),
        }
    }
    None
}

/// Reads groups until all was `fed` and nothing more comes.
async fn groups(mut track: track::Ordered, fed: Rc<Cell<bool>>) -> Vec<(u64, Vec<u8>)> {
    let mut groups = Vec::new();
    while let Some(group) = unless_silent(track.next_group(), &fed, 8).await {
        let Some(mut group) = group.unwrap() else { break };
        let mut bytes = Vec::new();
        // The last group grows until the stream goes on.
        while let Some(frame) = unless_silent(group.read_frame(), &fed, 4).await {
            let Some(frame) = frame.unwrap() else { break };
            bytes.extend_from_slice(&frame.payload);
        }
        groups.push((group.sequence, bytes));
    }
    groups
}

fn of_pid(bytes: &[u8], pid: u16) -> Vec<&[u8]> {
    let pid_of = |packet: &&[u8]| u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]);
    bytes.chunks_exact(TS).filter(|packet| pid_of(packet) == pid).collect()
}

#[test]
fn stock_publisher_and_subscribers_use_the_tree_as_a_relay() {
    let Some(media) = clip(6) else { return skipped::skipped("media over QUIC through a tree", "ffmpeg") };
    run(async {
        let server = Server::start().await;
        let viewers = [Viewer::start(&server).await, Viewer::start(&server).await];
        let (_publisher, _broadcast, track) = publish(&server.edge, LITE).await;
        server.says("reads broadcast").await;
        let fed = Rc::<Cell<bool>>::default();
        let readers = viewers.iter().zip([DRAFT_19, LITE]).map(|(viewer, way)| {
            let (edge, fed) = (viewer.edge, fed.clone());
            spawn_local(async move { groups(subscribe(&edge, way).await.1, fed).await })
        });
        let readers: Vec<_> = readers.collect();
        feed(&track, &media, 40, 4000).await;
        fed.set(true);
        for (viewer, reader) in viewers.iter().zip(readers) {
            let groups = reader.await.unwrap();
            let mut played = Vec::new();
            viewer.played(&mut played);
            // The last payload waits for more.
            assert!(played.len() + 16 * TS > media.len(), "{} of {}", played.len(), media.len());
            assert!(media.starts_with(&played), "the tree alters nothing");
            assert!(groups.len() >= 5, "{} groups", groups.len());
            let hls = viewer.screen.hls.lock().unwrap();
            for (number, bytes) in &groups[..groups.len() - 1] {
                let segment = hls.segment(*number).expect("a group is a segment");
                assert!(segment == bytes, "group {number}: {} bytes, segment {}", bytes.len(), segment.len());
            }
            let all: Vec<u8> = groups.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            for pid in [0x100, 0x101] {
                let (sent, got) = (of_pid(&media, pid), of_pid(&all, pid));
                let from = sent.iter().position(|packet| Some(packet) == got.first()).unwrap();
                assert!(got.len() > 20 && sent[from..].starts_with(&got), "packets of {pid:#x} in order");
                assert!(from + got.len() + 16 > sent.len(), "{from} + {} of {}", got.len(), sent.len());
            }
        }
    });
}

#[test]
fn a_publisher_that_stops_in_mid_group_and_its_successor() {
    run(async {
        let server = Server::start().await;
        let viewer = Viewer::start(&server).await;
        let (first, broadcast, track) = publish(&server.edge, DRAFT_19).await;
        server.says("reads broadcast").await;
        let whole = packets(0..600);
        let mut group = track.append_group().unwrap();
        group.write_frame(time(0), Bytes::copy_from_slice(&whole[..300 * TS])).unwrap();
        pause(300).await;
        // A second publisher is refused.
        assert!(quic(&server.edge, "moqt-19").await.is_err());
        // The first one leaves with half a packet in its last group.
        group.write_frame(time(1), Bytes::copy_from_slice(&whole[300 * TS..400 * TS + 90])).unwrap();
        pause(300).await;
        drop((group, track, broadcast));
        drop(first);
        server.says("the publisher at").await;
        let (_publisher, _broadcast, track) = publish(&server.edge, LITE).await;
        feed(&track, &whole, 50, 1200).await;
        let played = viewer.plays(850 * TS).await;
        assert!(played.starts_with(&whole[..390 * TS]), "what came before the stop is played");
        let tail = &played[played.len() - 400 * TS..];
        let numbers = |bytes: &[u8]| bytes.chunks(TS).map(|packet| packet[7]).collect::<Vec<u8>>();
        let found = whole.windows(tail.len()).step_by(TS).any(|part| part == tail);
        assert!(found, "and what came after: {:?}", numbers(&played[380 * TS..]));
    });
}

#[test]
fn a_group_without_an_end_is_cut() {
    run(async {
        let server = Server::start().await;
        let (_publisher, _broadcast, track) = publish(&server.edge, LITE).await;
        server.says("reads broadcast").await;
        let mut group = track.append_group().unwrap();
        let chunk = Bytes::from(packets(0..300));
        // 32 MiB are the most of a group; the stock publisher resets it there.
        let mut written = 0;
        while group.write_frame(time(0), chunk.clone()).is_ok() {
            written += chunk.len();
            pause(2).await;
        }
        assert!(written < 34 << 20, "{written}");
        // The server reads later groups once they are ahead of the incomplete one.
        for seconds in [10, 20] {
            let mut group = track.append_group().unwrap();
            group.write_frame(time(seconds * 1000), Bytes::from(packets(0..300))).unwrap();
            group.finish().unwrap();
            pause(100).await;
        }
        server.says("group 0 is incomplete").await;
        // The source goes on.
        pause(1000).await;
        for seconds in 30.. {
            let mut group = track.append_group().unwrap();
            group.write_frame(time(seconds * 1000), Bytes::from(packets(0..300))).unwrap();
            group.finish().unwrap();
            pause(300).await;
            if server.status.lock().unwrap().stalled_s < 0.4 {
                break;
            }
        }
    });
}

/// Streams of garbage under each protocol, and what a peer sees: its connection is closed in time.
#[test]
fn garbage_and_floods_close_their_connection_only() {
    run(async {
        let screen = Arc::new(Screen::default());
        let edge = serve(&screen);
        for protocol in ["h3", "moqt-19", "moq-lite-06", "moql"] {
            let connection = quic(&edge, protocol).await.unwrap();
            let mut one = connection.open_uni().await.unwrap();
            let (mut two, _answer) = connection.open_bi().await.unwrap();
            let garbage: Vec<u8> =
                (0..4000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let _ = one.write_all(&garbage).await;
            let _ = two.write_all(&garbage).await;
            // Closed at once, or when the handshake takes too long.
            let closed = timeout(Duration::from_secs(8), connection.closed()).await;
            assert!(closed.is_ok(), "{protocol} stays open");
        }
        // A request of 60 MiB (moq-lite: SUBSCRIBE, length, body).
        let connection = quic(&edge, "moq-lite-06").await.unwrap();
        let (mut flood, _answer) = connection.open_bi().await.unwrap();
        flood.write_all(&[2, 0x80 | 3, 0xc0, 0, 0]).await.unwrap();
        let mut sent = 0;
        while flood.write_all(&[7; 1 << 14]).await.is_ok() {
            sent += 1 << 14;
        }
        assert!(sent < 40 << 20, "{sent} bytes were taken");
        connection.closed().await;
        // Others still get in.
        let (_stock, _track) = subscribe(&edge, LITE).await;
    });
}

/// A certificate is replaced while a subscriber reads. A client with both hashes connects at any time.
#[test]
fn a_certificate_is_renewed_with_an_overlap() {
    run(async {
        let screen = Arc::new(Screen::default());
        let seconds = Span::from_secs;
        let lifetimes =
            moq::Lifetimes { expires: seconds(3600), announced: seconds(1), replaced: seconds(4) };
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let renewed = move |renewal| say.send(renewal).unwrap();
        let edge = moq::serve("127.0.0.1:0".parse().unwrap(), &screen, lifetimes, renewed).unwrap();
        let (first, _) = subscribe(&edge, LITE).await;
        let Some(moq::Renewal::Announced { certificate: next, .. }) = said.recv().await else {
            panic!("the successor is announced first")
        };
        let _second = subscribe(&edge, LITE).await;
        assert_eq!(said.recv().await, Some(moq::Renewal::Replaced { certificate: next }));
        let renewed = Edge { certificate: next, ..edge };
        let _third = subscribe(&renewed, LITE).await;
        assert!(first.is_open(), "connections keep the certificate that they began with");
    });
}

#[test]
fn a_subscriber_that_does_not_read_delays_nobody() {
    let Some(media) = clip(30) else { return skipped::skipped("a subscriber that stalls", "ffmpeg") };
    run(async {
        let screen = Arc::new(Screen::default());
        let edge = serve(&screen);
        let (stalled, _track) = subscribe(&edge, LITE).await;
        let (_reader, track) = subscribe(&edge, LITE).await;
        let fed = Rc::<Cell<bool>>::default();
        let reading = spawn_local(groups(track, fed.clone()));
        screen.play(clock::now(), Bytes::copy_from_slice(&media[..400 * TS]));
        pause(200).await;
        stalled.freeze();
        for chunk in media[400 * TS..].chunks(6 * TS) {
            screen.play(clock::now(), Bytes::copy_from_slice(chunk));
            tokio::task::yield_now().await;
        }
        pause(500).await;
        fed.set(true);
        let groups = reading.await.unwrap();
        assert!(groups.len() >= 25, "{} groups", groups.len());
        assert_eq!(groups.last().unwrap().0, 29);
    });
}
