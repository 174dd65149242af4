//! The overlay's world: takes an event, hands it to the sender or relay it belongs to.
//!
//! A packet has one pending event at any time: its arrival at the next hop, the return of its
//! acknowledgement or refusal, or its timeout if that is earlier. Relays begin their seconds when they are
//! next looked at, and an acknowledgement's way back is one event, since nothing can happen to it.

use std::ops::ControlFlow;

use tidegate_control::paths::perfect::{Manager, NoPath};
use tidegate_control::paths::relay::{PolicingRelay, SECOND};
use tidegate_control::paths::{
    Controller, ControllerParameters, MAX_HOPS, Memos, Path, Peer, Sender, Stamps,
};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};

use super::delay::DelayTable;
use super::plan::{Change, Conduct, Plan, PlanError, Traffic};
use super::report::{Counts, Report};
use crate::event_loop::{Model, run_until};
use crate::queue::Queue;

/// Runs the plan to its end, or until `goes_on`, called at the end of each interval, returns false.
///
/// # Errors
/// [`PlanError`] if the plan does not pass [`Plan::check`].
pub fn run(
    plan: &Plan,
    parameters: &ControllerParameters,
    seed: Seed,
    goes_on: &dyn Fn(Time) -> bool,
) -> Result<Report, PlanError> {
    plan.check()?;
    let end = Time::ZERO + plan.duration;
    let mut planned = PlannedRun { world: World::new(plan, parameters, seed, None), end, goes_on };
    let _ = run_until(&mut planned, Time::NEVER);
    Ok(planned.world.finish())
}

/// A run with an end that its caller can bring forward.
struct PlannedRun<'a> {
    world: World<'a>,
    end: Time,
    goes_on: &'a dyn Fn(Time) -> bool,
}

impl Model for PlannedRun<'_> {
    type Event = Event;

    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.world.next(last)
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        if now >= self.end || (matches!(event, Event::Bin) && !(self.goes_on)(now)) {
            return ControlFlow::Break(());
        }
        self.world.handle(now, event)
    }
}

impl Model for World<'_> {
    type Event = Event;

    #[inline]
    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.queue.pop_until(last, |_| ())
    }

    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        match event {
            Event::Attempt(source) => self.attempt(now, source),
            Event::Packet(id) => self.packet(now, id),
            Event::Toggle(source) => self.toggle(now, source),
            Event::Change(index) => self.change(now, self.plan.changes[index as usize].1),
            Event::Bin => {
                self.end_bin();
                self.queue.push(now + self.plan.bin, Event::Bin);
            }
        }
        ControlFlow::Continue(())
    }
}

#[derive(Clone, Copy)]
pub(super) enum Event {
    /// A source looks whether it can send.
    Attempt(Peer),
    /// Something is due for a packet.
    Packet(u32),
    /// An on-off source changes over.
    Toggle(Peer),
    /// `Plan::changes[i]` happens.
    Change(u32),
    /// An interval of the report ends.
    Bin,
}

/// What is next for a packet.
#[derive(Clone, Copy)]
enum Stage {
    /// It arrives at hop `i` of its path.
    Arrives(u8),
    /// Its acknowledgement arrives at the source.
    Acked,
    /// The refusal of hop `i` arrives at the source.
    Refused(u8),
    /// Nothing but the timeout.
    Lost,
}

/// The first cache line is what passing it on takes, the second what only its source reads.
#[repr(C, align(64))]
struct Packet {
    /// When `stage` is due.
    due: Time,
    sent: Time,
    deadline: Time,
    path: Path,
    stage: Stage,
    timed_out: bool,
    memos: Memos,
    stamps: Stamps,
}

/// A peer as a source.
pub(super) struct Source {
    /// None under the perfect controller.
    pub sender: Option<Sender>,
    /// When its next second begins.
    second: Time,
    /// Whether its application has something to send.
    active: bool,
    /// Whether an attempt is pending.
    attempting: bool,
}

/// A peer as a relay and destination.
struct Hop {
    relay: PolicingRelay,
    conduct: Conduct,
    member: bool,
}

pub(super) struct World<'a> {
    plan: &'a Plan,
    queue: Queue<Event>,
    pub sources: Vec<Source>,
    hops: Vec<Hop>,
    members: Vec<Peer>,
    manager: Option<Manager>,
    delays: DelayTable,
    packets: Vec<Packet>,
    free: Vec<u32>,
    refusing: bool,
    random: Random,
    counts: Counts,
    report: Report,
}

impl<'a> World<'a> {
    /// Peer 0 obeys `own`, if there is such a controller.
    pub(crate) fn new(
        plan: &'a Plan,
        parameters: &ControllerParameters,
        seed: Seed,
        mut own: Option<Box<dyn Controller>>,
    ) -> World<'a> {
        let n = plan.peers.len();
        let delays = DelayTable::new(&plan.delays, n, plan.jitter, seed.fork("jitter"));
        let packet = f64::from(plan.packet);
        let central = parameters.controller(n, seed).is_none();
        let mut phases = seed.fork("phases").random();
        let (mut sources, mut hops) = (Vec::new(), Vec::new());
        for (peer, its) in plan.peers.iter().enumerate() {
            // The manager of the perfect controller has all peers begin their seconds together.
            let phase = if central { Span::ZERO } else { Span((phases.unit() * SECOND.0 as f64) as u64) };
            let branch = seed.fork("controller").fork_index(peer as u64);
            let controller = own.take().or_else(|| parameters.controller(n, branch));
            let sender = controller.map(|controller| {
                Sender::new(peer as Peer, n, plan.hops, packet, controller, parameters.latencies(n))
            });
            sources.push(Source { sender, second: Time::ZERO + phase, active: false, attempting: false });
            let relay = PolicingRelay::new(f64::from(its.limit), phase, n, parameters.stamping());
            hops.push(Hop { relay, conduct: its.conduct, member: true });
        }
        let manager = central.then(|| {
            let limits = plan.peers.iter().map(|peer| f64::from(peer.limit)).collect();
            let pairs = 0..n * n;
            let means = pairs.map(|pair| delays.mean((pair / n) as Peer, (pair % n) as Peer)).collect();
            Manager::new(plan.hops, packet, limits, means)
        });
        let mut world = World {
            plan,
            queue: Queue::new(),
            sources,
            hops,
            members: (0..n as Peer).collect(),
            manager,
            delays,
            packets: Vec::new(),
            free: Vec::new(),
            refusing: parameters.refusing(),
            random: seed.fork("paths").random(),
            counts: Counts::default(),
            report: Report::default(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for (peer, its) in self.plan.peers.iter().enumerate() {
            if !its.member {
                self.set_member(peer as Peer, false);
            }
            match its.traffic {
                Traffic::Silent => {}
                Traffic::Saturated { from } => self.queue.push(from, Event::Toggle(peer as Peer)),
                Traffic::OnOff { off, .. } => {
                    let first = self.exponential(off);
                    self.queue.push(Time::ZERO + first, Event::Toggle(peer as Peer));
                }
            }
        }
        for (index, (at, _)) in self.plan.changes.iter().enumerate() {
            self.queue.push(*at, Event::Change(index as u32));
        }
        self.queue.push(Time::ZERO + self.plan.bin, Event::Bin);
    }

    fn finish(mut self) -> Report {
        self.end_bin();
        self.report.events = self.queue.popped();
        self.report
    }

    fn end_bin(&mut self) {
        self.report.bins.push(std::mem::take(&mut self.counts));
        if let Some((source, peer)) = self.plan.watch {
            let rate = self.sources[usize::from(source)].sender.as_ref().map_or(0.0, |s| s.rate(peer));
            self.report.watched.push(rate as f32);
        }
    }

    fn exponential(&mut self, mean: Span) -> Span {
        Span::from_secs_f64(self.random.exponential(mean.as_secs_f64()))
    }

    fn toggle(&mut self, now: Time, peer: Peer) {
        let source = &mut self.sources[usize::from(peer)];
        source.active = !source.active;
        let active = source.active;
        self.wake(now, peer);
        if let Traffic::OnOff { on, off } = self.plan.peers[usize::from(peer)].traffic {
            let stay = self.exponential(if active { on } else { off });
            // A mean of zero must not stop the clock.
            self.queue.push(now + stay + Span(1), Event::Toggle(peer));
        }
    }

    /// Sees to it that an active source attempts to send.
    fn wake(&mut self, now: Time, peer: Peer) {
        let source = &mut self.sources[usize::from(peer)];
        if source.active && self.hops[usize::from(peer)].member && !source.attempting {
            source.attempting = true;
            self.queue.push(now, Event::Attempt(peer));
        }
    }

    fn change(&mut self, now: Time, change: Change) {
        match change {
            Change::Limit(peer, limit) => {
                self.hops[usize::from(peer)].relay.set_limit(f64::from(limit));
                if let Some(manager) = &mut self.manager {
                    manager.set_limit(peer, f64::from(limit));
                }
            }
            Change::Join(peer) => {
                self.set_member(peer, true);
                self.wake(now, peer);
            }
            Change::Leave(peer) => self.set_member(peer, false),
        }
    }

    fn set_member(&mut self, peer: Peer, member: bool) {
        self.hops[usize::from(peer)].member = member;
        self.members.retain(|other| *other != peer);
        if member {
            self.members.push(peer);
        }
        for sender in self.sources.iter_mut().filter_map(|source| source.sender.as_mut()) {
            sender.set_member(peer, member);
        }
        if let Some(manager) = &mut self.manager {
            let limit = if member { f64::from(self.plan.peers[usize::from(peer)].limit) } else { 0.0 };
            manager.set_limit(peer, limit);
        }
    }

    /// A source sends one packet if it can, and settles when to look again.
    fn attempt(&mut self, now: Time, peer: Peer) {
        let source = &mut self.sources[usize::from(peer)];
        if !source.active || !self.hops[usize::from(peer)].member {
            source.attempting = false;
            return;
        }
        // A source that was silent for several seconds starts only the last of them.
        if now >= source.second {
            let passed = (now.0 - source.second.0) / SECOND.0 + 1;
            source.second += SECOND * passed;
            if let Some(sender) = &mut source.sender {
                sender.second();
            }
        }
        let next_second = source.second;
        let route = match self.members.len() {
            0 | 1 => Route::NoneThisSecond,
            _ => self.route(now, peer),
        };
        let again = match route {
            Route::Path(path, memos) => {
                self.send(now, path, memos);
                now + self.plan.attempt_every
            }
            Route::NoneForThisOne => now + self.plan.attempt_every,
            Route::NoneThisSecond => next_second,
        };
        self.queue.push(again, Event::Attempt(peer));
    }

    fn destination(&mut self, source: Peer) -> Peer {
        if let Some(to) = self.plan.peers[usize::from(source)].to {
            return to;
        }
        loop {
            let drawn = self.members[self.random.below(self.members.len())];
            if drawn != source {
                return drawn;
            }
        }
    }

    fn route(&mut self, now: Time, peer: Peer) -> Route {
        let to = self.destination(peer);
        let Some(manager) = &mut self.manager else {
            let sender = self.sources[usize::from(peer)].sender.as_mut().expect("no manager, so a sender");
            return match sender.draw_path(to, &mut self.random) {
                Some((path, memos)) => Route::Path(path, memos),
                None if sender.saturated() => Route::NoneThisSecond,
                None => Route::NoneForThisOne,
            };
        };
        // A full destination is replaced by the next one.
        let fixed = self.plan.peers[usize::from(peer)].to.is_some();
        let first = self.members.iter().position(|member| *member == to).unwrap_or(0);
        for offset in 0..self.members.len() {
            let to = if fixed { to } else { self.members[(first + offset) % self.members.len()] };
            if to == peer {
                continue;
            }
            match manager.path(now, peer, to) {
                Ok(path) => return Route::Path(path, [0; MAX_HOPS]),
                Err(NoPath::DestinationFull) if !fixed => {}
                Err(_) => break,
            }
        }
        Route::NoneThisSecond
    }

    fn send(&mut self, now: Time, path: Path, memos: Memos) {
        self.counts.sent += 1;
        let deadline = match &self.sources[usize::from(path[0])].sender {
            Some(sender) => now + Span::from_secs_f64(sender.timeout(&path)),
            None => Time::NEVER,
        };
        let packet = Packet {
            due: now + self.delays.passage(path[0], path[1]),
            sent: now,
            deadline,
            stage: Stage::Arrives(1),
            timed_out: false,
            path,
            memos,
            stamps: [0.0; MAX_HOPS],
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.packets[id as usize] = packet;
                id
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        };
        self.schedule(id);
    }

    /// Queues what is next for a packet: its stage, or its timeout if that is earlier.
    fn schedule(&mut self, id: u32) {
        let packet = &self.packets[id as usize];
        let at = if packet.timed_out { packet.due } else { packet.due.min(packet.deadline) };
        if at == Time::NEVER {
            self.free.push(id);
        } else {
            self.queue.push(at, Event::Packet(id));
        }
    }

    fn packet(&mut self, now: Time, id: u32) {
        let packet = &mut self.packets[id as usize];
        // Only a timeout comes before the packet's stage is due.
        if now < packet.due {
            packet.timed_out = true;
            self.counts.timeouts += 1;
            if let Some(sender) = &mut self.sources[usize::from(packet.path[0])].sender {
                sender.timed_out(now, &packet.path, &packet.memos);
            }
            return self.schedule(id);
        }
        match packet.stage {
            Stage::Arrives(hop) => {
                self.arrive(now, id, usize::from(hop));
                self.schedule(id);
            }
            Stage::Acked => {
                let seconds = now.since(packet.sent).as_secs_f64();
                if packet.timed_out {
                    self.counts.late += 1;
                } else {
                    self.counts.acks += 1;
                    self.counts.to_timeout += packet.deadline.since(now).as_secs_f64();
                }
                if let Some(sender) = &mut self.sources[usize::from(packet.path[0])].sender {
                    sender.acked(now, &packet.path, &packet.memos, &packet.stamps, seconds, packet.timed_out);
                }
                self.free.push(id);
            }
            Stage::Refused(hop) => {
                if let (false, Some(sender)) =
                    (packet.timed_out, &mut self.sources[usize::from(packet.path[0])].sender)
                {
                    sender.refused(now, &packet.path, &packet.memos, &packet.stamps, usize::from(hop));
                }
                self.free.push(id);
            }
            Stage::Lost => self.free.push(id),
        }
    }

    /// A packet arrives at hop `hop` of its path: a relay, or beyond them the destination.
    fn arrive(&mut self, now: Time, id: u32, hop: usize) {
        let packet = &mut self.packets[id as usize];
        let at = &mut self.hops[usize::from(packet.path[hop])];
        self.counts.arrivals += 1;
        let forwards = at.member && at.conduct != Conduct::DropsAll;
        let speaks = forwards && !matches!(at.conduct, Conduct::Claims { silent: true, .. });
        let passes = forwards && at.relay.arrive(now, f64::from(self.plan.packet));
        let is_relay = hop <= self.plan.hops;
        if is_relay {
            let stamp = match at.conduct {
                Conduct::Claims { rate, .. } => rate as f32,
                _ => at.relay.stamp(),
            };
            if stamp > 0.0 {
                packet.stamps[hop - 1] = stamp;
            }
        }
        if passes && is_relay {
            packet.stage = Stage::Arrives(hop as u8 + 1);
            packet.due = now + self.delays.passage(packet.path[hop], packet.path[hop + 1]);
        } else if passes {
            self.counts.received += 1;
            packet.stage = Stage::Acked;
            packet.due = now + self.delays.passages(&packet.path[..=hop]);
        } else {
            self.counts.drops += 1;
            (packet.stage, packet.due) = if self.refusing && speaks {
                (Stage::Refused(hop as u8), now + self.delays.passages(&packet.path[..=hop]))
            } else {
                (Stage::Lost, Time::NEVER)
            };
        }
    }
}

/// A source's search for a path.
enum Route {
    Path(Path, Memos),
    /// No path to the destination that was drawn.
    NoneForThisOne,
    /// No path to any destination until the limits restart.
    NoneThisSecond,
}
