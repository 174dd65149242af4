//! The underlay: hosts with access links, and the Internet between them as delay, jitter, loss and faults.
//!
//! A packet waits for its sender's uplink, crosses the path, waits for its receiver's downlink and is
//! delivered; links store and forward. The uplink tells on arrival when the packet will have left it, so
//! the only events are "reached the downlink" and "left the downlink", and only the first if the downlink
//! is unlimited. A CoDel link adds one for each packet that waits.

#[cfg(test)]
mod tests;
mod trains;

use std::hint::black_box;
use std::sync::Arc;

use slab::Slab;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};

use crate::division::{Division, Local};
use crate::faults::{Outages, PathFaults, link_shares};
use crate::link::{Link, LinkTotals, Offer};
use crate::observe::Host;
pub use crate::packet::Packet;
use crate::packet::{Leaving, Size, UnderWay};
use crate::plan::{Fault, FaultKind, HostPlan, LinkPlan, PathTable, QueuePlan};
use crate::queue::Queue;

/// An event of a packet in flight. Only [`Underlay::handle`] interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetEvent(Step);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The packet reached its receiver's downlink, or the receiver itself if the downlink is unlimited. Receiver and
    /// size are copied here because reading the packet would be a cache miss.
    Arrived { id: u32, to: u32, bytes: u32 },
    /// A train could leave its receiver's downlink, if nothing else has used that meanwhile.
    Train { id: u32, to: u32, size: Size },
    /// The packet left the downlink of its receiver, on another machine,
    Delivered { id: u32, bytes: u32 },
    /// or on the same machine.
    Looped { id: u32, bytes: u32 },
    /// The host's uplink is free and packets wait (CoDel).
    Uplink(u32),
    /// The host's downlink is free and packets wait (CoDel).
    Downlink(u32),
}

/// A host's traffic up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostTraffic {
    /// The link out of the host.
    pub(crate) up: LinkTotals,
    /// The link into the host.
    pub(crate) down: LinkTotals,
    /// Packets lost after they left the uplink, plus those that found this host down.
    pub lost: u64,
}

/// The part of a host that every sender needs.
#[derive(Clone, Copy, Debug)]
struct Place {
    location: u32,
    machine: u32,
    /// The host with the links that it uses: itself, or another host of its machine.
    access: u32,
    /// Rate of its downlink.
    down: Rate,
    /// Both of its links are first come, first served.
    first_come: bool,
}

impl Place {
    fn new(hosts: &[HostPlan], this: u32) -> Place {
        let plan = &hosts[this as usize];
        let machine = machine(hosts, this);
        let access = if plan.up.queue == QueuePlan::Machine { machine } else { this };
        let used = &hosts[access as usize];
        let (down, first_come) = (used.down.rate, used.carries_trains());
        Place { location: plan.location, machine, access, down, first_come }
    }
}

/// All hosts' links and the paths between them, with packets that carry a `T`.
#[derive(Debug)]
pub struct Underlay<T> {
    /// The hosts of this process.
    sites: Local<Site>,
    places: Arc<[Place]>,
    division: Arc<Division>,
    process: u32,
    /// Packets to hosts of other processes since the last call of [`Underlay::leaving`].
    leaving: Vec<Leaving<T>>,
    paths: PathTable,
    faults: PathFaults,
    /// Packets in flight; events and links refer to them by key.
    under_way: Slab<UnderWay<T>>,
    /// Per connection and direction: arrival of its last packet. Kept only where packets could overtake.
    arrivals: Vec<[Time; 2]>,
}

/// A host's place in the network.
#[derive(Clone, Debug)]
struct Site {
    up: Link,
    down: Link,
    /// The current or next outage of the links, and whether it has begun.
    outage: (Time, Time),
    cut: bool,
    draws: Random,
    lost: u64,
    /// The source of `outage`.
    unlinked: Outages,
    /// Periods in which the host is stopped.
    stopped: Outages,
}

impl Site {
    fn new(hosts: &[HostPlan], this: u32, faults: &[Fault], seed: Seed) -> Site {
        let plan = &hosts[this as usize];
        let unlinked = Outages::new(faults, |kind| match *kind {
            FaultKind::LinkDown { host } | FaultKind::HostDown { host } => host == this,
            _ => false,
        });
        let shares = link_shares(faults, this);
        Site {
            up: Link::new(&plan.up).sharing(&shares),
            down: Link::new(&plan.down).sharing(&shares),
            outage: unlinked.period(),
            cut: false,
            draws: seed.fork("underlay").fork_index(u64::from(this)).random(),
            lost: 0,
            unlinked,
            stopped: Outages::new(faults, |kind| *kind == FaultKind::HostDown { host: this }),
        }
    }

    /// Whether the links work now. Drops packets that an outage has cut off.
    #[inline]
    fn is_linked<T>(&mut self, now: Time, under_way: &mut Slab<UnderWay<T>>) -> bool {
        now < self.outage.0 || self.pass_outages(now, under_way)
    }

    #[cold]
    fn pass_outages<T>(&mut self, now: Time, under_way: &mut Slab<UnderWay<T>>) -> bool {
        while self.is_cut_by(now) {
            if !self.cut {
                self.up.cut(self.outage.0, |id| drop(under_way.remove(id as usize)));
                self.down.cut(self.outage.0, |id| drop(under_way.remove(id as usize)));
                self.cut = true;
            }
            if now < self.outage.1 {
                return false;
            }
            self.unlinked.pass();
            self.outage = self.unlinked.period();
            self.cut = false;
        }
        true
    }

    /// Whether the current or next outage begins by then.
    fn is_cut_by(&self, time: Time) -> bool {
        time >= self.outage.0 && self.outage.0 < Time::NEVER
    }
}

/// The host that represents the machine of `host`.
fn machine(hosts: &[HostPlan], host: u32) -> u32 {
    let mut root = host;
    for _ in hosts {
        match hosts[root as usize].colocated {
            Some(next) => root = next,
            None => return root,
        }
    }
    panic!("hosts share a machine in a circle")
}

/// Stores a packet. A full slab grows by a quarter instead of doubling, which saves memory in large runs.
fn insert<T>(packets: &mut Slab<UnderWay<T>>, packet: UnderWay<T>) -> u32 {
    if packets.len() == packets.capacity() {
        packets.reserve_exact(packets.len() / 4 + 64);
    }
    packets.insert(packet) as u32
}

impl<T> Underlay<T> {
    /// An idle network. Each host draws losses and jitter for what it sends from its own branch of `seed`.
    ///
    /// # Panics
    /// If a location or a host that `hosts` or `faults` refer to does not exist.
    pub fn new(hosts: &[HostPlan], paths: PathTable, faults: &[Fault], seed: Seed) -> Underlay<T> {
        Underlay::part(hosts, paths, faults, seed, &Division::whole(hosts.len() as u32, 0), 0)
    }

    /// As [`new`](Underlay::new), for the hosts of one process.
    pub(crate) fn part(
        hosts: &[HostPlan],
        paths: PathTable,
        faults: &[Fault],
        seed: Seed,
        division: &Arc<Division>,
        process: u32,
    ) -> Underlay<T> {
        for host in hosts {
            assert!(host.location < paths.locations(), "host {} has no location", host.name);
        }
        // A fault outside the plan would silently do nothing.
        for Fault { kind, .. } in faults {
            let exists = match *kind {
                FaultKind::Drop { between: (a, b), .. }
                | FaultKind::Delay { between: (a, b), .. }
                | FaultKind::Partition { between: (a, b) } => a.max(b) < paths.locations(),
                FaultKind::LinkDown { host }
                | FaultKind::HostDown { host }
                | FaultKind::Byzantine { host, .. } => (host as usize) < hosts.len(),
                // The share of an unlimited link would change nothing, and a link that carries nothing is down.
                FaultKind::LinkShare { host, share } => {
                    let limited = |link: &LinkPlan| link.rate != Rate::UNLIMITED;
                    hosts.get(host as usize).is_some_and(|host| limited(&host.up) && limited(&host.down))
                        && share > 0.0
                }
            };
            assert!(exists, "{kind:?} befalls nothing");
        }
        Underlay {
            sites: division.hosts.local(process, |this| Site::new(hosts, this, faults, seed)),
            places: (0..hosts.len() as u32).map(|this| Place::new(hosts, this)).collect(),
            division: Arc::clone(division),
            process,
            leaving: Vec::new(),
            paths,
            faults: PathFaults::new(faults),
            under_way: Slab::new(),
            arrivals: Vec::new(),
        }
    }

    /// Sends a packet of `bytes` (IP header included) now. `flow` numbers the connection, from zero up without
    /// large gaps; both directions may share a number. Packets of one flow and direction never overtake.
    /// Returns when the packet will have left the uplink. Returns now for the loopback, for lost packets and under
    /// CoDel.
    pub fn send<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        (from, to): (Host, Host),
        flow: u32,
        bytes: u32,
        payload: T,
    ) -> Time {
        let now = queue.now();
        let packet = UnderWay { payload, sent: now, propagation: Span::ZERO, to, flow };
        let Place { access, machine, .. } = self.places[from.0 as usize];
        let sender = &mut self.sites[access as usize];
        // The loopback skips links and path.
        if machine == self.places[to.0 as usize].machine {
            if !sender.stopped.cover(now) {
                let id = insert(&mut self.under_way, packet);
                queue.push(now, NetEvent(Step::Looped { id, bytes }).into());
            } else {
                sender.lost += 1;
            }
        } else if sender.is_linked(now, &mut self.under_way) {
            let id = self.under_way.vacant_key() as u32;
            match sender.up.offer(now, id, || flow, bytes) {
                Offer::Departs(at) => {
                    self.depart(queue, access, (packet, bytes), at);
                    return at;
                }
                Offer::Waits(wake) => {
                    insert(&mut self.under_way, packet);
                    if let Some(wake) = wake {
                        queue.push(wake, NetEvent(Step::Uplink(access)).into());
                    }
                }
                Offer::Dropped => {}
            }
        } else {
            sender.lost += 1;
        }
        now
    }

    /// Handles an event; returns the packet if it has reached its receiver.
    pub fn handle<E: From<NetEvent>>(&mut self, queue: &mut Queue<E>, event: NetEvent) -> Option<Packet<T>> {
        let now = queue.now();
        match event.0 {
            Step::Train { .. } => unreachable!("`handle_train` handles trains"),
            Step::Arrived { id, to, bytes } => {
                let receiver = &mut self.sites[to as usize];
                if !receiver.is_linked(now, &mut self.under_way) {
                    receiver.lost += 1;
                    self.under_way.remove(id as usize);
                    return None;
                }
                if receiver.down.is_unlimited() {
                    let packet = self.under_way.remove(id as usize);
                    receiver.down.offer(now, id, || packet.flow, bytes);
                    return Some(packet.delivered_at(now, bytes));
                }
                match receiver.down.offer(now, id, || self.under_way[id as usize].flow, bytes) {
                    Offer::Departs(at) => self.deliver(queue, to, (id, bytes), at),
                    Offer::Waits(Some(wake)) => queue.push(wake, NetEvent(Step::Downlink(to)).into()),
                    Offer::Waits(None) => {}
                    Offer::Dropped => drop(self.under_way.remove(id as usize)),
                }
                None
            }
            Step::Delivered { id, bytes } => {
                // An outage during its time in the downlink would have lost it.
                let packet = self.under_way.remove(id as usize);
                Some(packet.delivered_at(now, bytes))
            }
            Step::Looped { id, bytes } => {
                let packet = self.under_way.remove(id as usize);
                let receiver = &mut self.sites[packet.to.0 as usize];
                let stopped = receiver.stopped.cover(now);
                receiver.lost += u64::from(stopped);
                (!stopped).then(|| packet.delivered(bytes, Span::ZERO))
            }
            Step::Uplink(host) => {
                let sender = &mut self.sites[host as usize];
                if !sender.is_linked(now, &mut self.under_way) {
                    return None;
                }
                let next = sender.up.wake(now, |id| drop(self.under_way.remove(id as usize)))?;
                if next.wake {
                    queue.push(next.at, NetEvent(Step::Uplink(host)).into());
                }
                let packet = self.under_way.remove(next.id as usize);
                self.depart(queue, host, (packet, next.bytes), next.at);
                None
            }
            Step::Downlink(host) => {
                let receiver = &mut self.sites[host as usize];
                if !receiver.is_linked(now, &mut self.under_way) {
                    return None;
                }
                let next = receiver.down.wake(now, |id| drop(self.under_way.remove(id as usize)))?;
                if next.wake {
                    queue.push(next.at, NetEvent(Step::Downlink(host)).into());
                }
                self.deliver(queue, host, (next.id, next.bytes), next.at);
                None
            }
        }
    }

    /// Flow and payload of the packet that an event delivers. Changes nothing; also touches the event's link, to
    /// prefetch it.
    pub(crate) fn look(&self, event: NetEvent) -> Option<(u32, &T)> {
        let packet = |id: u32| self.under_way.get(id as usize).map(|packet| (packet.flow, &packet.payload));
        match event.0 {
            Step::Delivered { id, .. } | Step::Looped { id, .. } => packet(id),
            Step::Arrived { id, to, .. } | Step::Train { id, to, .. } => {
                let down = &self.sites[to as usize].down;
                if down.is_unlimited() {
                    return packet(id);
                }
                black_box(down.next_departure());
                None
            }
            Step::Uplink(_) | Step::Downlink(_) => None,
        }
    }

    /// The host with the link of a step.
    pub(crate) fn place(&self, event: NetEvent) -> Option<Host> {
        match event.0 {
            Step::Arrived { to, .. } | Step::Train { to, .. } => Some(Host(to)),
            Step::Delivered { id, .. } | Step::Looped { id, .. } => {
                self.under_way.get(id as usize).map(|packet| packet.to)
            }
            Step::Uplink(host) | Step::Downlink(host) => Some(Host(host)),
        }
    }

    /// The packet's last bit leaves the uplink of `from` at `at`: sends it along the path.
    fn depart<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        from: u32,
        (mut packet, bytes): (UnderWay<T>, u32),
        at: Time,
    ) {
        let to = self.places[packet.to.0 as usize].access;
        // An outage hits it in the uplink, which counts it as lost then.
        let is_cut = self.sites[from as usize].is_cut_by(at);
        let arrives = if is_cut { None } else { self.cross(queue.now(), at, (from, to), packet.flow) };
        let Some(arrives) = arrives else { return };
        packet.propagation = arrives.since(at);
        if self.division.hosts.process(to) == self.process {
            let id = insert(&mut self.under_way, packet);
            queue.push(arrives, NetEvent(Step::Arrived { id, to, bytes }).into());
        } else {
            let size = Size::new(1, bytes);
            self.leaving.push(Leaving { arrives, size, is_train: false, packet });
        }
    }

    /// When a packet that leaves the uplink of `from` at `left` reaches the downlink of `to`; `None` if it is lost.
    fn cross(&mut self, now: Time, left: Time, (from, to): (u32, u32), flow: u32) -> Option<Time> {
        let [origin, destination] = [from, to].map(|host| self.places[host as usize].location);
        let path = self.paths.get(origin, destination);
        let sender = &mut self.sites[from as usize];
        let lost = path.loss > 0.0 && sender.draws.chance(path.loss);
        let extra =
            if lost { None } else { self.faults.pass(now, left, (origin, destination), &mut sender.draws) };
        let Some(extra) = extra else {
            sender.lost += 1;
            return None;
        };
        let mut arrives = left + path.delay + extra;
        if path.jitter > Span::ZERO {
            let jittered = path.delay.0 as f64 + sender.draws.normal(0.0, path.jitter.0 as f64);
            arrives = left + Span(jittered as u64).max(path.least_delay()) + extra;
        }
        if path.jitter > Span::ZERO || self.faults.can_delay() {
            arrives = self.behind(flow, from > to, arrives);
        }
        Some(arrives)
    }

    /// When a packet of a flow and direction arrives that would arrive at `arrives`, if it did not have to follow the
    /// packets before it.
    fn behind(&mut self, flow: u32, backwards: bool, arrives: Time) -> Time {
        let flow = flow as usize;
        if flow >= self.arrivals.len() {
            self.arrivals.resize(flow + 1, [Time::ZERO; 2]);
        }
        let earlier = &mut self.arrivals[flow][usize::from(backwards)];
        *earlier = arrives.max(*earlier);
        *earlier
    }

    /// Takes the packets to hosts of other processes since the last call, with their process.
    pub(crate) fn leaving(&mut self) -> impl Iterator<Item = (u32, Leaving<T>)> {
        let hosts = &self.division.hosts;
        self.leaving.drain(..).map(|leaving| (hosts.process(leaving.packet.to.0), leaving))
    }

    /// Takes a packet in flight from another process to a host of this one.
    pub(crate) fn arriving<E: From<NetEvent>>(&mut self, queue: &mut Queue<E>, leaving: Leaving<T>) {
        let Leaving { arrives, size, is_train, packet } = leaving;
        let to = self.places[packet.to.0 as usize].access;
        let id = insert(&mut self.under_way, packet);
        let step = if is_train {
            Step::Train { id, to, size }
        } else {
            Step::Arrived { id, to, bytes: size.bytes() }
        };
        queue.push(arrives, NetEvent(step).into());
    }

    /// The packet's last bit leaves the downlink of `to` at `at`.
    fn deliver<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        to: u32,
        (id, bytes): (u32, u32),
        at: Time,
    ) {
        if self.sites[to as usize].is_cut_by(at) {
            // The outage hits it in the downlink, which counts it as lost then.
            self.under_way.remove(id as usize);
        } else {
            queue.push(at, NetEvent(Step::Delivered { id, bytes }).into());
        }
    }

    /// A host's traffic up to `now`, which must not decrease or precede the last event.
    pub(crate) fn traffic(&mut self, host: Host, now: Time) -> HostTraffic {
        let access = self.places[host.0 as usize].access;
        let site = &mut self.sites[access as usize];
        site.is_linked(now, &mut self.under_way);
        HostTraffic { up: site.up.totals(now), down: site.down.totals(now), lost: site.lost }
    }

    /// Whether a host is stopped at `now`, which must not decrease; false for hosts of other processes.
    pub(crate) fn is_stopped(&mut self, host: Host, now: Time) -> bool {
        let is_here = self.division.hosts.process(host.0) == self.process;
        is_here && self.sites[host.0 as usize].stopped.cover(now)
    }

    /// Number of packets in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.under_way.len()
    }
}
