//! The overlay with its real packets: the machines of MORE, every datagram built and opened, one transfer.
//!
//! [`transfer`] drives the same [`Node`], [`Upload`] and [`Download`] as a live run on sockets and stops at the same
//! event, but without a network and processor time.

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::Peer;
use tidegate_control::paths::parameters::ControllerParameters;
use tidegate_control::paths::sender::Sender;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_more::download::Download;
use tidegate_more::flights::Progress;
use tidegate_more::keys::PeerKeys;
use tidegate_more::machine::{Output, Randomness};
use tidegate_more::node::{Counters, Node, NodeConfig};
use tidegate_more::onion::{Epoch, MAX_RELAYS, Opened};
use tidegate_more::upload::{CHUNK, Overlay, Upload};
use tidegate_more::wire::PACKET;

use super::delay::DelayTable;
use super::plan::{Delays, PlanError};
use crate::queue::Queue;

/// One stream from the first peer to the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Peers, all of which relay.
    pub peers: usize,
    /// Relays per packet.
    pub hops: usize,
    /// Bytes of frames per second that each forwards.
    pub limit: f64,
    /// One-way delays.
    pub delays: Delays,
    /// Standard deviation of each delay as a share of it.
    pub jitter: f64,
    /// How often the source sends while it has rate left.
    pub attempt_every: Span,
    /// Length of the stream.
    pub bytes: u64,
    /// When it is given up.
    pub deadline: Span,
}

/// Its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// When the last chunk was acknowledged; none if the deadline came first.
    pub took: Option<Span>,
    /// Whether what arrived is what was sent.
    pub exact: bool,
    /// The source's counts.
    pub progress: Progress,
    /// All peers' counts.
    pub nodes: Vec<Counters>,
}

enum Event {
    Datagram(Peer, Vec<u8>),
    /// The source looks whether it can send.
    Source,
}

/// Byte `at` of the stream.
fn content(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Runs a transfer.
///
/// # Errors
/// [`PlanError::Hops`] for paths that cannot be, [`PlanError::Central`] for the perfect controller.
pub fn transfer(
    plan: &Transfer,
    parameters: &ControllerParameters,
    seed: Seed,
) -> Result<Delivery, PlanError> {
    let (n, hops) = (plan.peers, plan.hops);
    if !(1..=MAX_RELAYS).contains(&hops) || hops + 2 > n || n > super::plan::MAX_PEERS {
        return Err(PlanError::Hops { hops, peers: n });
    }
    let (mut nodes, epoch) = peers(n, plan.limit, parameters, seed);
    let controller = parameters.controller(n, seed.fork("controller")).ok_or(PlanError::Central)?;
    let sender = Sender::new(0, n, hops, f64::from(PACKET), controller, parameters.latencies(n));
    let overlay = Overlay { me: 0, to: (n - 1) as Peer, epoch, hops, attempt_every: plan.attempt_every };
    let randomness = Randomness::foretold(seed.fork("paths").random(), seed.fork("entropy").random());
    let mut upload = Upload::new(1, overlay, sender, randomness, Time::ZERO);
    let mut download = Download::default();
    let mut delays = DelayTable::new(&plan.delays, n, plan.jitter, seed.fork("jitter"));
    let mut drawn = seed.fork("acknowledgements").random();
    let mut queue = Queue::new();
    queue.push(Time::ZERO, Event::Source);
    let (mut written, mut received, mut exact, mut complete) = (0, 0, true, false);
    let mut planned = Time::ZERO;
    let mut took = None;
    while let Some((now, event)) = queue.pop() {
        if now > Time::ZERO + plan.deadline {
            break;
        }
        match event {
            Event::Source if now < planned => continue,
            Event::Source => {}
            Event::Datagram(at, datagram) => match opened(&mut nodes[usize::from(at)], now, &datagram) {
                Some(Opened::Forward { to, datagram }) if usize::from(to) < n => {
                    queue.push(now + delays.passage(at, to), Event::Datagram(to, datagram));
                }
                Some(Opened::Data { body, reply }) => {
                    let Some(arrived) = download.body(&body) else { continue };
                    exact &= arrived.bytes.iter().zip(received..).all(|(byte, at)| *byte == content(at));
                    received += arrived.bytes.len() as u64;
                    complete |= arrived.complete;
                    if let Some((to, ack)) = reply.acknowledge(&[], &mut || drawn.bytes())
                        && let Some(ack) = nodes[usize::from(at)].seal(to, &ack)
                    {
                        queue.push(now + delays.passage(at, to), Event::Datagram(to, ack));
                    }
                }
                Some(Opened::Ack { id, annex, .. }) => upload.acked(now, id, annex),
                _ => {}
            },
        }
        while written < plan.bytes && upload.room() >= 64 * CHUNK {
            let end = plan.bytes.min(written + 64 * CHUNK as u64);
            upload.write(&(written..end).map(content).collect::<Vec<u8>>());
            written = end;
        }
        if written == plan.bytes {
            upload.end();
        }
        upload.catch_up(now);
        while let Some(output) = upload.poll() {
            if let Output::Send(to, datagram) = output
                && let Some(datagram) = nodes[0].seal(to, &datagram)
            {
                queue.push(now + delays.passage(0, to), Event::Datagram(to, datagram));
            }
        }
        if upload.done() {
            took = Some(now.since(Time::ZERO));
            break;
        }
        let next = upload.next_timeout().unwrap_or(Time::NEVER).max(now + Span(1));
        // One pending look is enough; an earlier one takes its place.
        if planned <= now || next < planned {
            planned = next;
            queue.push(next, Event::Source);
        }
    }
    let nodes = nodes.iter().map(Node::counters).collect();
    let exact = exact && complete && received == plan.bytes;
    Ok(Delivery { took, exact, progress: upload.progress(), nodes })
}

/// All peers in epoch 0 with secrets of their own, and the keys of that epoch.
pub(super) fn peers(
    n: usize,
    limit: f64,
    parameters: &ControllerParameters,
    seed: Seed,
) -> (Vec<Node>, Epoch) {
    let mut drawn = seed.fork("secrets").random();
    let mut phases = seed.fork("phases").random();
    let secrets: Vec<[u8; 32]> = (0..n).map(|_| drawn.bytes()).collect();
    let keys = || secrets.iter().map(|secret| PeerKeys::new(*secret));
    let links: Vec<[u8; 32]> = keys().map(|keys| keys.link_key()).collect();
    let epoch = Epoch::new(0, keys().map(|keys| keys.onion_key(0)).collect());
    let node = |(me, keys)| {
        Node::new(NodeConfig {
            me: me as Peer,
            keys,
            links: &links,
            epoch: 0,
            limit,
            phase: Span::from_secs_f64(phases.unit()),
            stamping: parameters.stamping(),
        })
    };
    (keys().enumerate().map(node).collect(), epoch)
}

/// Handles a datagram at a peer; it causes at most one event.
pub(super) fn opened(node: &mut Node, now: Time, datagram: &[u8]) -> Option<Opened> {
    node.handle(now, datagram);
    node.poll()
}
