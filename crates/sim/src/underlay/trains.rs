//! Trains: consecutive packets of one connection that cross the network as one object.
//!
//! The packets of a train enter the uplink together, so they leave it back to back. Loss, faults and jitter are drawn
//! per packet; a lost packet splits the train. One event is due when the last packet could leave the downlink, and not
//! before that of the train before it in the same connection. If nothing else has used the downlink since the train
//! began to arrive, the train is delivered then. Otherwise it waits behind.

use std::ops::Range;

use tidegate_control::units::{Span, Time};

use super::{NetEvent, Step, Underlay, insert};
use crate::observe::Host;
use crate::packet::{Leaving, Packet, Size, Train, UnderWay};
use crate::queue::Queue;

/// Cuts packets out of a train of a connection: its number, the train, and which packets. Returns them with their
/// bytes, or `None` if the connection has closed.
pub(crate) type Cut<'c, T> = &'c dyn Fn(u32, &T, Range<u32>) -> Option<(T, u32)>;

/// Packets of a train that reach the receiver one after the other.
struct Piece {
    packets: Range<u32>,
    /// When the last one could leave the downlink.
    due: Time,
    /// Time of the last one on the path.
    propagation: Span,
}

impl<T> Underlay<T> {
    /// Whether trains can cross the network between two hosts: the links of both are first come, first served.
    pub(crate) fn carries_trains(&self, from: Host, to: Host) -> bool {
        let (from, to) = (self.places[from.0 as usize], self.places[to.0 as usize]);
        from.machine != to.machine && from.first_come && to.first_come
    }

    /// As [`send`](Self::send), for a train between hosts for which [`carries_trains`](Self::carries_trains) is true.
    /// `due` keeps the time of the last event of the flow's direction.
    pub(crate) fn send_train<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        (from, to): (Host, Host),
        (flow, due): (u32, &mut Time),
        (train, payload): (Train, T),
        cut: Cut<'_, T>,
    ) -> Time {
        let now = queue.now();
        let access = self.places[from.0 as usize].access;
        let sender = &mut self.sites[access as usize];
        if !sender.is_linked(now, &mut self.under_way) {
            sender.lost += u64::from(train.packets);
            return now;
        }
        let admitted = sender.up.admits(now, train);
        let front = train.front(admitted.max(1));
        let size = if admitted == 0 { Size::new(0, 0) } else { front.size() };
        let departs = sender.up.offer_train(now, now, size, train.packets - admitted);
        if admitted > 0 {
            let packet = UnderWay { payload, sent: now, propagation: Span::ZERO, to, flow };
            self.depart_train(queue, access, (train, admitted), (departs, due), packet, cut);
        }
        departs
    }

    /// The last of the admitted packets leaves the uplink of `from` at `at`: sends them along the path. `order` is the
    /// time of the flow's last event.
    fn depart_train<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        from: u32,
        (train, admitted): (Train, u32),
        (at, order): (Time, &mut Time),
        packet: UnderWay<T>,
        cut: Cut<'_, T>,
    ) {
        // The outage hits it in the uplink, which counts it as lost then.
        if self.sites[from as usize].is_cut_by(at) {
            return;
        }
        let to = self.places[packet.to.0 as usize].access;
        let front = train.front(admitted);
        let down = self.places[to as usize].down;
        let mut left = at - self.sites[from as usize].up.span_for(front.size().bytes() - front.bytes_of(0));
        let mut piece: Option<Piece> = None;
        let mut whole = Some(packet);
        for number in 0..admitted {
            if number > 0 {
                left += self.sites[from as usize].up.span_for(front.bytes_of(number));
            }
            let left = left.min(at);
            let packet = whole.as_ref().expect("only the last packet takes it");
            let arrives = self.cross(queue.now(), left, (from, to), packet.flow);
            if let Some(arrives) = arrives {
                let on_link = down.span_for(front.bytes_of(number).into());
                let begun = piece.get_or_insert(Piece {
                    packets: number..number,
                    due: Time::ZERO,
                    propagation: Span::ZERO,
                });
                begun.packets.end = number + 1;
                begun.due = begun.due.max(arrives) + on_link;
                begun.propagation = arrives.since(left);
            }
            if (arrives.is_none() || number + 1 == admitted)
                && let Some(mut piece) = piece.take()
            {
                // A short train must not overtake a long one of its connection.
                piece.due = piece.due.max(*order);
                *order = piece.due;
                let is_whole = piece.packets == (0..train.packets);
                let taken =
                    if is_whole { whole.take().map(|packet| (packet, front.size().bytes())) } else { None };
                let cut_out = || {
                    let packet = whole.as_ref()?;
                    let (payload, bytes) = cut(packet.flow, &packet.payload, piece.packets.clone())?;
                    Some((UnderWay { payload, ..*packet }, bytes))
                };
                if let Some((packet, bytes)) = taken.or_else(cut_out) {
                    self.file_train(queue, to, &piece, bytes, packet);
                }
            }
        }
    }

    /// Schedules the one event of a piece, here or in its receiver's process.
    fn file_train<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        to: u32,
        piece: &Piece,
        bytes: u32,
        packet: UnderWay<T>,
    ) {
        let size = Size::new(piece.packets.len() as u32, bytes);
        let packet = UnderWay { propagation: piece.propagation, ..packet };
        if self.division.hosts.process(to) == self.process {
            let id = insert(&mut self.under_way, packet);
            queue.push(piece.due, NetEvent(Step::Train { id, to, size }).into());
        } else {
            self.leaving.push(Leaving { arrives: piece.due, size, is_train: true, packet });
        }
    }

    /// As [`handle`](Self::handle), where trains are sent. A queue without room for a whole train drops its tail.
    pub(crate) fn handle_train<E: From<NetEvent>>(
        &mut self,
        queue: &mut Queue<E>,
        event: NetEvent,
        cut: Cut<'_, T>,
    ) -> Option<Packet<T>> {
        let Step::Train { id, to, mut size } = event.0 else { return self.handle(queue, event) };
        let now = queue.now();
        let receiver = &mut self.sites[to as usize];
        if !receiver.is_linked(now, &mut self.under_way) {
            receiver.lost += u64::from(size.packets());
            self.under_way.remove(id as usize);
            return None;
        }
        let arrived = now - receiver.down.span_for(size.bytes());
        let admitted = receiver.down.admits(now, Train::even(size));
        let dropped = size.packets() - admitted;
        if dropped > 0 {
            let packet = &mut self.under_way[id as usize];
            let front = if admitted > 0 { cut(packet.flow, &packet.payload, 0..admitted) } else { None };
            let Some((payload, bytes)) = front else {
                receiver.down.offer_train(now, now, Size::new(0, 0), dropped);
                self.under_way.remove(id as usize);
                return None;
            };
            packet.payload = payload;
            size = Size::new(admitted, bytes);
        }
        let departs = receiver.down.offer_train(now, arrived, size, dropped);
        if departs <= now {
            return Some(self.under_way.remove(id as usize).delivered_at(now, size.bytes()));
        }
        self.deliver(queue, to, (id, size.bytes()), departs);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_control::random::Seed;
    use tidegate_control::units::Rate;

    use super::*;
    use crate::plan::{HostPlan, LinkPlan, Path, PathTable, QueuePlan, Role};

    /// Host 0 receives.
    const RECEIVER: Host = Host(0);

    /// A train that a host sends at a time.
    #[derive(Clone, Copy, Debug)]
    struct Sent {
        at: Time,
        from: Host,
        train: Train,
    }

    /// Packets of a train that were delivered: the train's place in the list, which packets, and when.
    type Delivered = Vec<(usize, Range<u32>, Time)>;

    #[derive(Clone, Copy)]
    enum Event {
        Net(NetEvent),
        Send(usize),
    }

    impl From<NetEvent> for Event {
        fn from(event: NetEvent) -> Event {
            Event::Net(event)
        }
    }

    fn hosts(down: Rate, up: &[Rate], queue: QueuePlan) -> Vec<HostPlan> {
        let host = |rate| HostPlan {
            name: String::new(),
            role: Role::Server,
            location: 0,
            colocated: None,
            up: LinkPlan { rate, queue },
            down: LinkPlan { rate, queue },
        };
        std::iter::once(down).chain(up.iter().copied()).map(host).collect()
    }

    /// Sends trains, whole or as packets; returns what arrived, and what was dropped and lost.
    fn run(hosts: &[HostPlan], path: Path, sent: &[Sent], whole: bool) -> (Delivered, u64) {
        let mut underlay: Underlay<(usize, Range<u32>)> =
            Underlay::new(hosts, PathTable::uniform(1, path), &[], Seed::root(3));
        let mut queue = Queue::new();
        (0..).zip(sent).for_each(|(index, sent)| queue.push(sent.at, Event::Send(index)));
        let cut = |_, payload: &(usize, Range<u32>), packets: Range<u32>| {
            let train = sent[payload.0].train;
            let (start, end) = (payload.1.start + packets.start, payload.1.start + packets.end);
            let bytes = (start..end).map(|packet| train.bytes_of(packet)).sum();
            Some(((payload.0, start..end), bytes))
        };
        let mut delivered = Vec::new();
        let mut due = vec![Time::ZERO; hosts.len()];
        while let Some((now, event)) = queue.pop() {
            let packet = match event {
                Event::Net(event) => underlay.handle_train(&mut queue, event, &cut),
                Event::Send(index) => {
                    let Sent { from, train, .. } = sent[index];
                    let ends = (from, RECEIVER);
                    if whole {
                        let payload = (index, 0..train.packets);
                        let flow = (from.0, &mut due[from.0 as usize]);
                        underlay.send_train(&mut queue, ends, flow, (train, payload), &cut);
                    } else {
                        for packet in 0..train.packets {
                            let payload = (index, packet..packet + 1);
                            underlay.send(&mut queue, ends, from.0, train.bytes_of(packet), payload);
                        }
                    }
                    None
                }
            };
            delivered.extend(packet.map(|packet| (packet.payload.0, packet.payload.1, now)));
        }
        assert_eq!(underlay.in_flight(), 0);
        let traffic = (0..hosts.len() as u32).map(|host| underlay.traffic(Host(host), Time(u64::MAX >> 1)));
        (delivered, traffic.map(|host| host.up.dropped + host.down.dropped + host.lost).sum())
    }

    /// When the last delivered packet of each train arrives.
    fn ends(delivered: &Delivered, trains: usize) -> Vec<Time> {
        let mut ends = vec![Time::ZERO; trains];
        delivered.iter().for_each(|(train, _, at)| ends[*train] = ends[*train].max(*at));
        ends
    }

    /// For each train: first and last arrival at the downlink, and when the last packet could leave it.
    fn arrivals(hosts: &[HostPlan], delay: Span, sent: &[Sent]) -> Vec<(Time, Time, Time)> {
        let mut free = vec![Time::ZERO; hosts.len()];
        let mut order = vec![Time::ZERO; hosts.len()];
        let mut arrival = |sent: &Sent| {
            let (host, free) = (&hosts[sent.from.0 as usize], &mut free[sent.from.0 as usize]);
            let mut due = Time::ZERO;
            let mut first = Time::NEVER;
            for packet in 0..sent.train.packets {
                let bytes = u64::from(sent.train.bytes_of(packet));
                *free = sent.at.max(*free) + host.up.rate.span_for(bytes);
                first = first.min(*free + delay);
                due = due.max(*free + delay) + hosts[0].down.rate.span_for(bytes);
            }
            order[sent.from.0 as usize] = due.max(order[sent.from.0 as usize]);
            (first, *free + delay, order[sent.from.0 as usize])
        };
        sent.iter().map(&mut arrival).collect()
    }

    fn rate() -> impl Strategy<Value = Rate> {
        prop_oneof![6 => (1u64..400).prop_map(|mbit| Rate(mbit * 500_000)), 1 => Just(Rate::UNLIMITED)]
    }

    /// Trains of up to eight packets from several hosts, in order of time.
    fn trains(hosts: u32) -> impl Strategy<Value = Vec<Sent>> {
        let train = (0u64..20_000, 1..=hosts, 1u32..8, 100u32..1_500, 0.0..1.0f64);
        let sent = train.prop_map(|(us, from, packets, full, last)| {
            let last = ((f64::from(full) * last) as u32).max(40);
            Sent { at: Time(1_000 * us), from: Host(from), train: Train { packets, full, last } }
        });
        prop::collection::vec(sent, 1..60).prop_map(|mut sent| {
            sent.sort_by_key(|sent| sent.at);
            sent
        })
    }

    /// Checks that packets of one host arrive in order.
    fn check_order(delivered: &Delivered, sent: &[Sent]) -> Result<(), TestCaseError> {
        for host in 1..=4 {
            let own = delivered.iter().filter(|(train, ..)| sent[*train].from.0 == host);
            let own: Vec<_> = own.map(|(train, packets, _)| (*train, packets.start, packets.end)).collect();
            for pair in own.windows(2) {
                prop_assert!((pair[0].0, pair[0].2) <= (pair[1].0, pair[1].1) || pair[0].0 < pair[1].0);
            }
        }
        Ok(())
    }

    const ENDLESS: QueuePlan = QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX };
    const DELAY: Span = Span::from_millis(5);

    proptest! {
        /// Without other traffic a train arrives when its last packet would, but for roundings to nanoseconds.
        #[test]
        fn a_train_alone_takes_as_long_as_its_packets(
            rates in [rate(), rate()],
            sent in trains(1),
        ) {
            let hosts = hosts(rates[0], &rates[1..], ENDLESS);
            let path = Path { delay: DELAY, ..Path::default() };
            let [packets, trains] = [false, true].map(|whole| run(&hosts, path, &sent, whole));
            for (packet, train) in ends(&packets.0, sent.len()).iter().zip(ends(&trains.0, sent.len())) {
                // A link rounds the time of each packet up; 8 packets in each of 60 trains.
                prop_assert!(packet.0.abs_diff(train.0) <= 2 * 8 * 60, "{packet} as packets, {train} as a train");
            }
        }

        /// A train overtakes at most those that have begun to arrive before it is complete, and are complete later.
        #[test]
        fn a_train_is_early_by_at_most_the_trains_that_arrive_with_it(
            down in rate(),
            up in prop::collection::vec(rate(), 4),
            sent in trains(4),
        ) {
            let hosts = hosts(down, &up, ENDLESS);
            let path = Path { delay: DELAY, ..Path::default() };
            let [packets, trains] = [false, true].map(|whole| run(&hosts, path, &sent, whole));
            prop_assert_eq!((packets.1, trains.1), (0, 0));
            prop_assert_eq!(trains.0.iter().map(|(_, packets, _)| packets.len()).sum::<usize>(), packets.0.len());
            check_order(&trains.0, &sent)?;
            let arrivals = arrivals(&hosts, DELAY, &sent);
            let (packet_ends, train_ends) = (ends(&packets.0, sent.len()), ends(&trains.0, sent.len()));
            for (this, (_, last, due)) in arrivals.iter().enumerate() {
                let overtaken = sent.iter().zip(&arrivals).filter(|(_, other)| other.0 <= *last && other.2 >= *due);
                let bound: u64 = overtaken.map(|(sent, _)| down.span_for(sent.train.size().bytes().into()).0).sum();
                let early = packet_ends[this].0.saturating_sub(train_ends[this].0);
                prop_assert!(early <= bound + 2 * 8 * 60, "train {this} is {early} ns early, bound {bound}");
            }
        }

        /// Random loss takes the same packets; a full queue takes some; none appears twice or out of order.
        #[test]
        fn packets_are_delivered_once_in_order_or_counted(
            down in rate(),
            up in prop::collection::vec(rate(), 4),
            sent in trains(4),
            room in 1u32..40,
            bytes in prop_oneof![Just(u64::MAX), 3_000u64..30_000],
            loss in prop_oneof![Just(0.0), 0.0..0.3f64],
            jitter in prop_oneof![Just(Span::ZERO), Just(Span::from_millis(2))],
        ) {
            let path = Path { delay: DELAY, jitter, loss };
            let count = |delivered: &Delivered| delivered.iter().map(|(_, packets, _)| packets.len() as u64).sum::<u64>();
            let total = sent.iter().map(|sent| u64::from(sent.train.packets)).sum::<u64>();
            let queue = QueuePlan::DropTail { packets: room, bytes };
            let (delivered, gone) = run(&hosts(down, &up, queue), path, &sent, true);
            prop_assert_eq!(count(&delivered) + gone, total);
            check_order(&delivered, &sent)?;
            let hosts = hosts(down, &up, ENDLESS);
            let [packets, trains] = [false, true].map(|whole| run(&hosts, path, &sent, whole).0);
            check_order(&trains, &sent)?;
            let each = |delivered: Delivered| {
                let mut all: Vec<(usize, u32)> =
                    delivered.into_iter().flat_map(|(train, packets, _)| packets.map(move |p| (train, p))).collect();
                all.sort_unstable();
                all
            };
            prop_assert_eq!(each(packets), each(trains));
        }

        /// An uplink queue admits as many packets of a train as it admits of its packets.
        #[test]
        fn a_finite_uplink_splits_a_train_where_it_drops_packets(
            up in rate(),
            sent in trains(1),
            room in 1u32..12,
        ) {
            let queue = QueuePlan::DropTail { packets: room, bytes: u64::MAX };
            let mut hosts = hosts(Rate::UNLIMITED, &[up], queue);
            hosts[0].down.queue = ENDLESS;
            let path = Path { delay: DELAY, ..Path::default() };
            let [packets, trains] = [false, true].map(|whole| run(&hosts, path, &sent, whole));
            // Where trains of equal size wait, the number of packets that have left is exact; else it is rounded.
            let difference = packets.1.abs_diff(trains.1);
            prop_assert!(difference <= sent.len() as u64, "{} and {} dropped", packets.1, trains.1);
        }
    }
}
