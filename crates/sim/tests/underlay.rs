//! Packets through the whole underlay: uplink, path, downlink, faults.

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

use tidegate_sim::observe::Host;
use tidegate_sim::plan::{Fault, HostPlan, LinkPlan, Path, PathTable, QueuePlan, Role};
use tidegate_sim::queue::Queue;
use tidegate_sim::underlay::{NetEvent, Packet, Underlay};

const DROP_TAIL: QueuePlan = QueuePlan::DropTail { packets: 1000, bytes: u64::MAX };
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

    /// Everything that is delivered, and when.
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
        assert_eq!(
            (packet.from, packet.to, packet.bytes, packet.payload),
            (Host(0), Host(1), 1500, i as u32)
        );
    }
    assert_eq!(delivered.len(), 3);
    // The sends, and two events per packet.
    assert_eq!(net.queue.popped(), 3 + 6);
}
