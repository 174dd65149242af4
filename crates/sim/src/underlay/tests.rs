//! Packets through the whole underlay: uplink, path, downlink, faults.

use proptest::prelude::*;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

use crate::faults::{Transition, transitions};
use crate::observe::Host;
use crate::plan::{Fault, FaultKind, HostPlan, LinkPlan, Path, PathTable, QueuePlan, Role};
use crate::queue::Queue;
use crate::underlay::{NetEvent, Packet, Underlay};

const DROP_TAIL: QueuePlan = QueuePlan::DropTail { packets: 1000, bytes: u64::MAX };
const CODEL: QueuePlan =
    QueuePlan::CoDel { target: Span::from_millis(5), interval: Span::from_millis(100), packets: 1000 };

fn host(rate: Rate, queue: QueuePlan, location: u32) -> HostPlan {
    let link = LinkPlan { rate, queue };
    HostPlan {
        name: format!("host in {location}"),
        role: Role::Server,
        location,
        colocated: None,
        up: link,
        down: link,
    }
}

fn mbit(rate: u64, location: u32) -> HostPlan {
    host(Rate(rate * 1_000_000), DROP_TAIL, location)
}

fn path(delay: Span) -> Path {
    Path { delay, ..Path::default() }
}

/// The network, its events, and packets to send at given times.
struct Net {
    queue: Queue<Event>,
    underlay: Underlay<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Net(NetEvent),
    Send { from: u32, to: u32, flow: u32, bytes: u32, payload: u32 },
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Event {
        Event::Net(event)
    }
}

impl Net {
    fn new(hosts: &[HostPlan], paths: PathTable, faults: &[Fault]) -> Net {
        Net { queue: Queue::new(), underlay: Underlay::new(hosts, paths, faults, Seed::root(1)) }
    }

    fn at(&mut self, time: Time, from: u32, to: u32, bytes: u32, payload: u32) {
        self.queue.push(time, Event::Send { from, to, flow: from, bytes, payload });
    }

    /// The delivered packets with their times.
    fn run(&mut self) -> Vec<(Time, Packet<u32>)> {
        let mut delivered = Vec::new();
        while let Some((now, event)) = self.queue.pop() {
            match event {
                Event::Send { from, to, flow, bytes, payload } => {
                    self.underlay.send(&mut self.queue, (Host(from), Host(to)), flow, bytes, payload);
                }
                Event::Net(event) => {
                    if let Some(packet) = self.underlay.handle(&mut self.queue, event) {
                        delivered.push((now, packet));
                    }
                }
            }
        }
        delivered
    }
}

fn ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

#[test]
fn two_links_and_a_path_add_up_to_the_nanosecond() {
    // 1500 bytes: 1.5 ms at 8 Mbit/s, 0.5 ms at 24 Mbit/s.
    let hosts = [mbit(8, 0), mbit(24, 1)];
    let mut net = Net::new(&hosts, PathTable::uniform(2, path(Span::from_millis(20))), &[]);
    for payload in 0..3 {
        net.at(ms(1), 0, 1, 1500, payload);
    }
    let delivered = net.run();
    for (i, (now, packet)) in delivered.iter().enumerate() {
        let i = i as u64;
        assert_eq!(*now, ms(1) + Span::from_micros(1500 * (i + 1) + 20_000 + 500));
        assert_eq!(packet.sent, ms(1));
        assert_eq!(packet.link_queue, Span::from_micros(1500 * (i + 1) + 500));
        assert_eq!(packet.propagation, Span::from_millis(20));
        assert_eq!((packet.flow, packet.to, packet.bytes, packet.payload), (0, Host(1), 1500, i as u32));
    }
    assert_eq!(delivered.len(), 3);
    // The sends, and two events per packet.
    assert_eq!(net.queue.popped(), 3 + 6);
}

#[test]
fn an_unlimited_downlink_costs_one_event_and_loopback_no_time() {
    let mut hosts = vec![mbit(8, 0), host(Rate::UNLIMITED, DROP_TAIL, 1), host(Rate(0), CODEL, 0)];
    hosts[2].colocated = Some(0);
    let mut net = Net::new(&hosts, PathTable::uniform(2, path(Span::from_millis(20))), &[]);
    net.at(ms(0), 0, 1, 1000, 0);
    net.at(ms(0), 0, 2, 1000, 1);
    net.at(ms(0), 0, 0, 1000, 2);
    net.at(ms(1), 1, 0, 1000, 3);
    net.at(ms(1), 1, 2, 1000, 4);
    let delivered: Vec<_> =
        net.run().iter().map(|(now, packet)| (*now, packet.payload, packet.link_queue)).collect();
    let one = Span::from_millis(1);
    // Packet 4 meets the shut link of a host that is near only to its own machine.
    assert_eq!(
        delivered,
        [(ms(0), 1, Span::ZERO), (ms(0), 2, Span::ZERO), (ms(21), 0, one), (ms(22), 3, one)]
    );
    assert_eq!(net.queue.popped(), 5 + 1 + 1 + 1 + 2 + 1);
    let traffic = net.underlay.traffic(Host(1), ms(22));
    assert_eq!((traffic.up.sent_bytes, traffic.down.sent_bytes), (2000, 1000));
    assert_eq!(net.underlay.traffic(Host(2), ms(22)).down.dropped, 1);
}

#[test]
fn codel_links_deliver_in_order_with_one_more_event_for_each_packet_that_waits() {
    let hosts = [host(Rate(8_000_000), CODEL, 0), host(Rate(4_000_000), CODEL, 0)];
    let mut net = Net::new(&hosts, PathTable::uniform(1, path(Span::from_millis(3))), &[]);
    for payload in 0..10 {
        net.at(ms(0), 0, 1, 1000, payload);
    }
    let delivered = net.run();
    for (i, (now, packet)) in delivered.iter().enumerate() {
        assert_eq!(packet.payload, i as u32);
        assert_eq!(*now, ms(1 + 3 + 2 * (i as u64 + 1)));
        assert_eq!((packet.propagation, packet.link_queue), (Span::from_millis(3), now.since(ms(3))));
    }
    assert_eq!(delivered.len(), 10);
    assert_eq!(net.queue.popped(), 10 + 2 * 10 + 9 + 9);
}

/// A sender that keeps a window in flight, grows it by four packets each round trip and halves it on loss.
#[test]
fn codel_keeps_the_standing_delay_near_its_target_where_drop_tail_fills_the_buffer() {
    let standing_delay = |queue: QueuePlan| {
        let hosts = [host(Rate(10_000_000), queue, 0), host(Rate::UNLIMITED, DROP_TAIL, 0)];
        let mut net = Net::new(&hosts, PathTable::uniform(1, path(Span::from_millis(25))), &[]);
        let (mut window, mut in_flight, mut next, mut expected) = (10.0, 0u32, 0u32, 0u32);
        // A loss begins a recovery that ends with the last packet sent before it was seen.
        let mut recovery_ends = 0;
        let mut delays = Vec::new();
        while net.queue.now() < ms(60_000) {
            while f64::from(in_flight) < window {
                net.underlay.send(&mut net.queue, (Host(0), Host(1)), 0, 1250, next);
                (next, in_flight) = (next + 1, in_flight + 1);
            }
            let Some((now, event)) = net.queue.pop() else { break };
            let Event::Net(event) = event else {
                // An acknowledgement back at the sender, as `Send` from the receiver.
                let Event::Send { payload, .. } = event else { unreachable!() };
                in_flight -= payload + 1 - expected;
                if payload > expected && expected >= recovery_ends {
                    window = (window / 2.0_f64).max(2.0);
                    recovery_ends = next;
                }
                expected = payload + 1;
                window += 4.0 / window;
                continue;
            };
            if let Some(packet) = net.underlay.handle(&mut net.queue, event) {
                if now > ms(10_000) {
                    delays.push(packet.link_queue);
                }
                let ack = Event::Send { from: 1, to: 0, flow: 0, bytes: 40, payload: packet.payload };
                net.queue.push(now + Span::from_millis(25), ack);
            }
        }
        delays.sort_unstable();
        let now = net.queue.now();
        let totals = net.underlay.traffic(Host(0), now).up;
        (delays[delays.len() / 2], totals.busy.as_secs_f64() / now.as_secs_f64(), totals.dropped)
    };
    let (codel, busy, dropped) = standing_delay(CODEL);
    assert!((Span::from_millis(3)..Span::from_millis(8)).contains(&codel), "median delay {codel}");
    assert!(busy > 0.88 && dropped > 50, "busy {busy}, {dropped} dropped");
    let (drop_tail, busy, _) = standing_delay(QueuePlan::DropTail { packets: 200, bytes: u64::MAX });
    assert!(drop_tail > Span::from_millis(100), "median delay {drop_tail}");
    assert!(busy > 0.95, "busy {busy}");
}

#[test]
fn jitter_has_its_moments_and_loss_its_frequency() {
    let hosts = [host(Rate::UNLIMITED, DROP_TAIL, 0), host(Rate::UNLIMITED, DROP_TAIL, 1)];
    let (delay, jitter) = (Span::from_millis(50), Span::from_millis(5));
    let paths = PathTable::uniform(2, Path { delay, jitter, loss: 0.1 });
    let mut net = Net::new(&hosts, paths, &[]);
    let packets = 20_000;
    for i in 0..packets {
        // So far apart that none is held back for another.
        net.at(ms(200 * u64::from(i)), 0, 1, 100, i);
    }
    let delivered = net.run();
    let n = delivered.len() as f64;
    assert!((n / f64::from(packets) - 0.9).abs() < 0.01, "{n} delivered");
    assert_eq!(
        net.underlay.traffic(Host(0), net.queue.now()).lost,
        u64::from(packets) - delivered.len() as u64
    );
    let mean = delivered.iter().map(|(_, p)| p.propagation.0 as f64).sum::<f64>() / n;
    let variance = delivered.iter().map(|(_, p)| (p.propagation.0 as f64 - mean).powi(2)).sum::<f64>() / n;
    assert!((mean / 50e6 - 1.0).abs() < 0.005, "mean {mean}");
    assert!((variance.sqrt() / 5e6 - 1.0).abs() < 0.03, "deviation {}", variance.sqrt());
}

#[test]
fn no_jitter_takes_more_than_half_of_a_delay() {
    let unlimited = host(Rate::UNLIMITED, DROP_TAIL, 0);
    let delay = Span::from_millis(10);
    let paths = PathTable::uniform(2, Path { delay, jitter: Span::from_millis(10), loss: 0.0 });
    let mut net = Net::new(&[unlimited.clone(), HostPlan { location: 1, ..unlimited }], paths, &[]);
    for number in 0..1000 {
        net.at(ms(1000 * u64::from(number)), 0, 1, 100, number);
    }
    let least = net.run().iter().map(|(_, packet)| packet.propagation).min().expect("some arrive");
    // Three in ten draws lie below.
    assert_eq!(least, delay / 2);
}

#[test]
fn random_draws_depend_only_on_the_sender() {
    let path = Path { delay: Span::from_millis(9), jitter: Span::from_millis(2), loss: 0.05 };
    let run = |hosts: u32, seed: u64| {
        let plans: Vec<HostPlan> = (0..hosts).map(|_| mbit(1000, 0)).collect();
        let mut net = Net::new(&plans, PathTable::uniform(1, path), &[]);
        net.underlay = Underlay::new(&plans, PathTable::uniform(1, path), &[], Seed::root(seed));
        for i in 0..2000 {
            for from in 0..hosts {
                // The third host's packets arrive elsewhere, so that they cannot queue before the first's.
                net.at(ms(u64::from(i)), from, u32::from(from == 0), 100, i);
            }
        }
        net.run().into_iter().filter(|(_, p)| p.flow == 0).map(|(at, p)| (at, p.payload)).collect::<Vec<_>>()
    };
    assert_eq!(run(2, 1), run(2, 1));
    assert_eq!(run(2, 1), run(3, 1));
    assert_ne!(run(2, 1), run(2, 2));
}

fn fault(kind: FaultKind, from: u64, until: u64) -> Fault {
    Fault { kind, from: ms(from), until: ms(until) }
}

/// Sends 1000 bytes from host 0 to 1 every 10 ms for 100 ms over links of 8 Mbit/s (1 ms each) and a path of
/// 20 ms, and gives the numbers of those delivered.
fn survivors(fault: Fault) -> Vec<u32> {
    let mut net =
        Net::new(&[mbit(8, 0), mbit(8, 1)], PathTable::uniform(2, path(Span::from_millis(20))), &[fault]);
    for i in 0..10 {
        net.at(ms(10 * u64::from(i)), 0, 1, 1000, i);
    }
    let delivered = net.run().iter().map(|(_, p)| p.payload).collect();
    let end = net.queue.now() + Span::from_secs(1);
    let (a, b) = (net.underlay.traffic(Host(0), end), net.underlay.traffic(Host(1), end));
    let lost = a.lost + b.lost + a.up.dropped + b.down.dropped;
    assert_eq!(b.down.sent_bytes + 1000 * lost, 10_000, "every packet is delivered or counted");
    assert_eq!(net.underlay.in_flight(), 0);
    delivered
}

#[test]
fn path_faults_concern_packets_that_enter_the_path_while_they_last() {
    // Packet i enters at 10 i + 1 ms.
    let between = (1, 0);
    assert_eq!(survivors(fault(FaultKind::Partition { between }, 31, 61)), [0, 1, 2, 6, 7, 8, 9]);
    assert_eq!(survivors(fault(FaultKind::Partition { between: (1, 1) }, 31, 61)).len(), 10);
    assert_eq!(survivors(fault(FaultKind::Drop { between, probability: 1.0 }, 0, 50)), [5, 6, 7, 8, 9]);
    assert_eq!(survivors(fault(FaultKind::Drop { between, probability: 0.0 }, 0, 50)).len(), 10);
}

#[test]
fn delay_faults_add_up_and_keep_the_order_of_packets() {
    let between = (0, 1);
    let delay = |extra, from, until| {
        fault(FaultKind::Delay { between, extra: Span::from_millis(extra) }, from, until)
    };
    let faults = [delay(100, 10, 30), delay(7, 20, 1000)];
    let mut net =
        Net::new(&[mbit(8, 0), mbit(8, 1)], PathTable::uniform(2, path(Span::from_millis(20))), &faults);
    for i in 0..4 {
        net.at(ms(10 * u64::from(i)), 0, 1, 1000, i);
    }
    let arrived: Vec<_> = net.run().iter().map(|(now, p)| (*now, p.payload)).collect();
    // 22 ms of transit; the last one would arrive at 59 ms without the one before.
    assert_eq!(arrived, [(ms(22), 0), (ms(132), 1), (ms(149), 2), (ms(150), 3)]);
}

#[test]
fn a_packet_delayed_for_ever_arrives_at_the_end_of_time() {
    let forever = fault(FaultKind::Delay { between: (0, 1), extra: Span(u64::MAX) }, 15, 1000);
    assert_eq!(survivors(forever).len(), 10);
}

#[test]
fn a_failed_link_drops_queued_and_arriving_packets() {
    // The sender's: packet i occupies the uplink over [10 i, 10 i + 1) ms.
    let up = |from, until| survivors(fault(FaultKind::LinkDown { host: 0 }, from, until));
    assert_eq!(up(32, 40), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(up(31, 41), [0, 1, 2, 5, 6, 7, 8, 9]);
    assert_eq!(up(0, 1000), [0; 0]);
    // The receiver's: packet i occupies the downlink over [10 i + 21, 10 i + 22) ms.
    let down = |kind, from, until| survivors(fault(kind, from, until));
    assert_eq!(down(FaultKind::LinkDown { host: 1 }, 43, 51), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(down(FaultKind::LinkDown { host: 1 }, 42, 52), [0, 1, 4, 5, 6, 7, 8, 9]);
    assert_eq!(down(FaultKind::HostDown { host: 1 }, 42, 52), [0, 1, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn an_outage_empties_the_queue() {
    for queue in [DROP_TAIL, CODEL] {
        let hosts = [host(Rate(8_000_000), queue, 0), host(Rate::UNLIMITED, DROP_TAIL, 1)];
        let down = fault(FaultKind::LinkDown { host: 0 }, 3, 8);
        let mut net = Net::new(&hosts, PathTable::uniform(2, path(Span::ZERO)), &[down]);
        for i in 0..10 {
            net.at(Time(1), 0, 1, 1000, i);
        }
        net.at(ms(8), 0, 1, 1000, 99);
        let delivered: Vec<_> = net.run().iter().map(|(now, p)| (*now, p.payload)).collect();
        assert_eq!(delivered, [(ms(1) + Span(1), 0), (ms(2) + Span(1), 1), (ms(9), 99)]);
        let up = net.underlay.traffic(Host(0), ms(20)).up;
        assert_eq!((up.sent_bytes, up.dropped), (3000, 8));
        assert_eq!(up.busy, Span(4_000_000 - 1));
        assert_eq!(net.underlay.in_flight(), 0);
    }
}

#[test]
fn a_host_that_is_down_hears_not_even_its_own_machine() {
    let mut hosts = [mbit(8, 0), mbit(8, 0)];
    hosts[1].colocated = Some(0);
    let faults = [
        fault(FaultKind::HostDown { host: 1 }, 10, 20),
        fault(FaultKind::HostDown { host: 1 }, 20, 30),
        fault(FaultKind::LinkDown { host: 1 }, 30, 40),
    ];
    let mut net = Net::new(&hosts, PathTable::uniform(1, path(Span::ZERO)), &faults);
    for i in 0..5 {
        net.at(ms(10 * u64::from(i)), i % 2, (i + 1) % 2, 1000, i);
    }
    assert_eq!(net.run().iter().map(|(_, p)| p.payload).collect::<Vec<_>>(), [0, 3, 4]);
    let change = |at, up| Transition { at: ms(at), host: Host(1), up };
    assert_eq!(transitions(&faults), [change(10, false), change(30, true)]);
}

fn any_queue() -> impl Strategy<Value = QueuePlan> {
    prop_oneof![
        (0u32..20, prop_oneof![Just(u64::MAX), 0u64..20_000])
            .prop_map(|(packets, bytes)| QueuePlan::DropTail { packets, bytes }),
        (0u64..20, 0u64..200, 0u32..40).prop_map(|(target, interval, packets)| QueuePlan::CoDel {
            target: Span::from_millis(target),
            interval: Span::from_millis(interval),
            packets
        }),
    ]
}

fn any_link() -> impl Strategy<Value = LinkPlan> {
    let rate = prop_oneof![1 => Just(Rate(0)), 2 => Just(Rate::UNLIMITED), 8 => (1_000u64..20_000_000).prop_map(Rate)];
    (rate, any_queue()).prop_map(|(rate, queue)| LinkPlan { rate, queue })
}

fn any_host() -> impl Strategy<Value = HostPlan> {
    let place = (0u32..3, prop::option::weighted(0.2, Just(0)));
    (any_link(), any_link(), place).prop_map(|(up, down, (location, colocated))| HostPlan {
        name: String::new(),
        role: Role::Server,
        location,
        colocated,
        up,
        down,
    })
}

fn any_fault(hosts: u32) -> impl Strategy<Value = Fault> {
    let between = (0u32..3, 0u32..3);
    let kind = prop_oneof![
        (between.clone(), 0.0..1.0)
            .prop_map(|(between, probability)| FaultKind::Drop { between, probability }),
        (
            between.clone(),
            prop_oneof![9 => (0u64..50).prop_map(Span::from_millis), 1 => Just(Span(u64::MAX))]
        )
            .prop_map(|(between, extra)| FaultKind::Delay { between, extra }),
        between.prop_map(|between| FaultKind::Partition { between }),
        (0..hosts).prop_map(|host| FaultKind::LinkDown { host }),
        (0..hosts).prop_map(|host| FaultKind::HostDown { host }),
    ];
    (kind, 0u64..400, 0u64..200).prop_map(|(kind, from, lasts)| fault(kind, from, from + lasts))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whatever the network and its faults: packets are delivered in the order of their flow, or counted as
    /// dropped or lost; times add up; the books close.
    #[test]
    fn packets_are_conserved_and_ordered(
        mut hosts in prop::collection::vec(any_host(), 4),
        faults in prop::collection::vec(any_fault(4), 0..6),
        sends in prop::collection::vec((0u64..300, 0u32..4, 0u32..4, 0u32..3, 40u32..1500), 0..400),
        (delay, jitter, loss) in (0u64..50, 0u64..20, 0.0..0.2),
    ) {
        hosts[0].colocated = None;
        let path = Path { delay: Span::from_millis(delay), jitter: Span::from_millis(jitter), loss };
        let mut net = Net::new(&hosts, PathTable::uniform(3, path), &faults);
        for (i, (at, from, to, flow, bytes)) in sends.iter().copied().enumerate() {
            net.queue.push(ms(at), Event::Send { from, to, flow, bytes, payload: i as u32 });
        }
        let delivered = net.run();
        let mut last = vec![None; 4 * 4 * 3];
        for (now, packet) in &delivered {
            prop_assert_eq!(packet.sent + packet.link_queue + packet.propagation, *now);
            let (at, from, to, flow, bytes) = sends[packet.payload as usize];
            prop_assert_eq!((ms(at), Host(to), flow, bytes), (packet.sent, packet.to, packet.flow, packet.bytes));
            let order = &mut last[((from * 4 + to) * 3 + flow) as usize];
            // Those sent at once go in the order of the events, which is that of the payloads.
            prop_assert!(order.is_none_or(|earlier| earlier < (packet.sent, packet.payload)));
            *order = Some((packet.sent, packet.payload));
        }
        let end = net.queue.now() + Span::from_secs(1);
        let mut gone = 0;
        for host in 0..4 {
            let traffic = net.underlay.traffic(Host(host), end);
            gone += traffic.lost + traffic.up.dropped + traffic.down.dropped;
            for link in [traffic.up, traffic.down] {
                prop_assert_eq!(link.queued_bytes, 0);
                prop_assert!(link.busy <= end.since(Time::ZERO));
            }
        }
        prop_assert_eq!(sends.len() as u64, delivered.len() as u64 + gone);
        prop_assert_eq!(net.underlay.in_flight(), 0);
    }
}
