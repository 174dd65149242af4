//! Packets through a star: clients keep a window of packets in flight to one server, which answers each with
//! a small one, as TCP does. A step is one packet from `send` to delivery, its events in the queue included.

mod cpu;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_sim::observe::Host;
use tidegate_sim::plan::{HostPlan, LinkPlan, Path, PathTable, QueuePlan, Role};
use tidegate_sim::queue::Queue;
use tidegate_sim::underlay::{NetEvent, Underlay};

/// Packets delivered per measured iteration.
const STEPS: usize = 10_000;
const CLIENTS: u32 = 100;
const WINDOW: u32 = 30;

/// A payload as large as the simulator's.
type Payload = [u64; 8];

/// As the simulator has it: network events among others.
enum Event {
    Net(NetEvent),
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Event {
        Event::Net(event)
    }
}

struct Star {
    queue: Queue<Event>,
    underlay: Underlay<Payload>,
}

impl Star {
    fn new(rate: Rate, queue: QueuePlan, jitter: Span) -> Star {
        let link = LinkPlan { rate, queue };
        let host = HostPlan {
            name: String::new(),
            role: Role::Server,
            location: 0,
            colocated: None,
            up: link,
            down: link,
        };
        let paths = PathTable::uniform(1, Path { delay: Span::from_millis(40), jitter, loss: 0.0 });
        let hosts = vec![host; 1 + CLIENTS as usize];
        let mut star =
            Star { queue: Queue::new(), underlay: Underlay::new(&hosts, paths, &[], Seed::root(1)) };
        for packet in 0..CLIENTS * WINDOW {
            let client = 1 + packet % CLIENTS;
            star.underlay.send(&mut star.queue, (Host(client), Host(0)), client, 1500, [0; 8]);
        }
        star.run(100 * STEPS);
        star
    }

    /// Answers each packet until `steps` have been delivered.
    fn run(&mut self, mut steps: usize) {
        while steps > 0 {
            let (_, Event::Net(event)) = self.queue.pop().expect("the number of packets is constant");
            if let Some(packet) = self.underlay.handle(&mut self.queue, event) {
                let bytes = if packet.bytes == 1500 { 52 } else { 1500 };
                let sender = if packet.to == Host(0) { Host(packet.flow) } else { Host(0) };
                let ends = (packet.to, sender);
                self.underlay.send(&mut self.queue, ends, packet.flow, bytes, packet.payload);
                steps -= 1;
            }
        }
    }
}

fn underlay(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("underlay");
    group.throughput(Throughput::Elements(STEPS as u64));
    let drop_tail = QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX };
    let codel =
        QueuePlan::CoDel { target: Span::from_secs(9), interval: Span::from_secs(9), packets: u32::MAX };
    let gigabit = Rate(1_000_000_000);
    for (name, rate, queue, jitter) in [
        ("drop-tail", gigabit, drop_tail, Span::ZERO),
        ("codel", gigabit, codel, Span::ZERO),
        ("jitter", gigabit, drop_tail, Span::from_millis(1)),
        ("unlimited", Rate::UNLIMITED, drop_tail, Span::ZERO),
    ] {
        let mut star = Star::new(rate, queue, jitter);
        group.bench_function(name, |bencher| cpu::measure(bencher, || star.run(STEPS)));
    }
}

criterion_group!(benches, underlay);
criterion_main!(benches);
