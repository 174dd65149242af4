//! The overlay with its real packets: the machines of MORE, every datagram built and opened, one transfer.
//!
//! [`transfer`] drives the same [`Node`], [`Upload`] and [`Download`] as a live run on sockets and stops at the same
//! event, but without a network and processor time.

use std::ops::ControlFlow;

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer, Sender};
use tidegate_control::random::{Random, Seed};
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
use crate::event_loop::{Model, Timer, run_until};
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
    let (nodes, epoch) = peers(n, plan.limit, parameters, seed);
    let controller = parameters.controller(n, seed.fork("controller")).ok_or(PlanError::Central)?;
    let sender = Sender::new(0, n, hops, f64::from(PACKET), controller, parameters.latencies(n));
    let overlay = Overlay { me: 0, to: (n - 1) as Peer, epoch, hops, attempt_every: plan.attempt_every };
    let randomness = Randomness::foretold(seed.fork("paths").random(), seed.fork("entropy").random());
    let mut run = TransferRun {
        plan,
        nodes,
        upload: Upload::new(1, overlay, sender, randomness, Time::ZERO),
        download: Download::default(),
        delays: DelayTable::new(&plan.delays, n, plan.jitter, seed.fork("jitter")),
        drawn: seed.fork("acknowledgements").random(),
        queue: Queue::new(),
        timer: Timer::default(),
        written: 0,
        received: 0,
        exact: true,
        complete: false,
        took: None,
    };
    let first = run.timer.arm(Time::ZERO, Time::ZERO).expect("the timer is not armed");
    run.queue.push(first, Event::Source);
    let _ = run_until(&mut run, Time::ZERO + plan.deadline);
    Ok(Delivery {
        took: run.took,
        exact: run.exact && run.complete && run.received == plan.bytes,
        progress: run.upload.progress(),
        nodes: run.nodes.iter().map(Node::counters).collect(),
    })
}

/// A transfer in progress.
struct TransferRun<'a> {
    plan: &'a Transfer,
    nodes: Vec<Node>,
    upload: Upload,
    download: Download,
    delays: DelayTable,
    /// Entropy of acknowledgements.
    drawn: Random,
    queue: Queue<Event>,
    /// When the source looks again.
    timer: Timer,
    written: u64,
    received: u64,
    /// Whether all bytes so far are right, and whether the last has come.
    exact: bool,
    complete: bool,
    took: Option<Span>,
}

impl Model for TransferRun<'_> {
    type Event = Event;

    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.queue.pop_until(last, |_| ())
    }

    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        match event {
            Event::Source if !self.timer.fires(now) => return ControlFlow::Continue(()),
            Event::Source => {}
            Event::Datagram(at, datagram) => {
                if !self.arrive(now, at, &datagram) {
                    return ControlFlow::Continue(());
                }
            }
        }
        self.write();
        self.upload.catch_up(now);
        while let Some(output) = self.upload.poll() {
            if let Output::Send(to, datagram) = output
                && let Some(datagram) = self.nodes[0].seal(to, &datagram)
            {
                self.send(now, 0, to, datagram);
            }
        }
        if self.upload.done() {
            self.took = Some(now.since(Time::ZERO));
            return ControlFlow::Break(());
        }
        if let Some(due) = self.timer.arm_later(now, self.upload.next_timeout()) {
            self.queue.push(due, Event::Source);
        }
        ControlFlow::Continue(())
    }
}

impl TransferRun<'_> {
    /// Handles a datagram at a peer; returns false if it was a body that cannot be read.
    fn arrive(&mut self, now: Time, at: Peer, datagram: &[u8]) -> bool {
        match opened(&mut self.nodes[usize::from(at)], now, datagram) {
            Some(Opened::Forward { to, datagram }) if usize::from(to) < self.plan.peers => {
                self.send(now, at, to, datagram);
            }
            Some(Opened::Data { body, reply }) => {
                let Some(arrived) = self.download.body(&body) else { return false };
                self.exact &=
                    arrived.bytes.iter().zip(self.received..).all(|(byte, at)| *byte == content(at));
                self.received += arrived.bytes.len() as u64;
                self.complete |= arrived.complete;
                if let Some((to, ack)) = reply.acknowledge(&[], &mut || self.drawn.bytes())
                    && let Some(ack) = self.nodes[usize::from(at)].seal(to, &ack)
                {
                    self.send(now, at, to, ack);
                }
            }
            Some(Opened::Ack { id, annex, .. }) => self.upload.acked(now, id, annex),
            _ => {}
        }
        true
    }

    /// Writes more of the stream while the source has room.
    fn write(&mut self) {
        while self.written < self.plan.bytes && self.upload.room() >= 64 * CHUNK {
            let end = self.plan.bytes.min(self.written + 64 * CHUNK as u64);
            self.upload.write(&(self.written..end).map(content).collect::<Vec<u8>>());
            self.written = end;
        }
        if self.written == self.plan.bytes {
            self.upload.end();
        }
    }

    fn send(&mut self, now: Time, from: Peer, to: Peer, datagram: Vec<u8>) {
        self.queue.push(now + self.delays.passage(from, to), Event::Datagram(to, datagram));
    }
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
            networks: (0..n as Peer).collect(),
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
