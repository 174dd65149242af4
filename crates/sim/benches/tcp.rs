//! Nanoseconds per data segment, both ends together: sending it, receiving it, and its share of an
//! acknowledgement. A window of segments is kept in flight over two pipes of constant delay; `wide` spreads
//! the work over many connections, so that endpoints come from memory and not from the cache.

mod cpu;

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::units::{Span, Time};
use tidegate_sim::tcp::{Buffer, Config, Congestion, Endpoint, Segment};

/// Data segments per measured iteration.
const SEGMENTS: u64 = 10_000;

/// A bulk transfer over a perfect pipe, stepped segment by segment.
struct Flow {
    ends: [Endpoint; 2],
    pipes: [VecDeque<(Time, Segment)>; 2],
    now: Time,
    /// One in this many data segments is lost; zero loses none.
    lose_one_in: u64,
    sent: u64,
}

const DELAY: Span = Span::from_millis(10);
const SERIALISATION: Span = Span::from_micros(20);

impl Flow {
    fn new(config: &Config, lose_one_in: u64) -> Flow {
        let ends = [Endpoint::active(config), Endpoint::passive(config)];
        let mut flow = Flow { ends, pipes: Default::default(), now: Time::ZERO, lose_one_in, sent: 0 };
        flow.ends[0].connect(Time::ZERO);
        flow.drain(config, 0);
        flow
    }

    fn drain(&mut self, config: &Config, end: usize) {
        if end == 0 {
            self.ends[0].write(u64::MAX);
        }
        while let Some(segment) = self.ends[end].poll_transmit(config, self.now) {
            let mut start = self.now;
            if segment.len > 0 {
                self.sent += 1;
                if self.lose_one_in > 0 && self.sent.is_multiple_of(self.lose_one_in) {
                    continue;
                }
                let last = self.pipes[end].back().map_or(Time::ZERO, |(due, _)| *due);
                start = start.max((last + SERIALISATION) - DELAY);
            }
            self.pipes[end].push_back((start + DELAY, segment));
        }
    }

    /// Takes the next event; gives the data segments that arrived.
    fn step(&mut self, config: &Config) -> u64 {
        let due = |pipe: &VecDeque<(Time, Segment)>| pipe.front().map_or(Time::NEVER, |(due, _)| *due);
        let timer = self.ends[0].next_timeout().min(self.ends[1].next_timeout());
        let (there, back) = (due(&self.pipes[0]), due(&self.pipes[1]));
        if timer < there.min(back) {
            self.now = timer;
            for end in 0..2 {
                self.ends[end].on_timeout(config, timer);
                self.drain(config, end);
            }
            return 0;
        }
        let from = usize::from(back < there);
        let (at, segment) = self.pipes[from].pop_front().expect("a packet or a timer is always pending");
        self.now = at;
        let to = 1 - from;
        let arrival = self.ends[to].on_segment(config, at, black_box(&segment));
        if arrival.received > 0 {
            self.ends[to].read(config, at, arrival.received);
        }
        self.drain(config, to);
        u64::from(segment.len > 0)
    }

    fn carry(&mut self, config: &Config, segments: u64) {
        let mut arrived = 0;
        while arrived < segments {
            arrived += self.step(config);
        }
    }
}

fn tcp(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tcp");
    group.throughput(Throughput::Elements(SEGMENTS));
    for (name, congestion, window, lose_one_in) in [
        ("reno", Congestion::Reno, 64, 0),
        ("cubic", Congestion::Cubic, 64, 0),
        ("none", Congestion::None, 64, 0),
        ("cubic lossy", Congestion::Cubic, 256, 1_000),
    ] {
        let config = Config {
            congestion,
            send_buffer: Buffer::Fixed(window * 1448),
            receive_buffer: Buffer::Fixed(window * 1448),
            ..Config::default()
        };
        let mut flow = Flow::new(&config, lose_one_in);
        flow.carry(&config, 10 * SEGMENTS);
        let id = BenchmarkId::new(name, window);
        group.bench_function(id, |bencher| cpu::measure(bencher, || flow.carry(&config, SEGMENTS)));
    }
    let config = Config {
        send_buffer: Buffer::Fixed(16 * 1448),
        receive_buffer: Buffer::Fixed(16 * 1448),
        ..Config::default()
    };
    let mut flows: Vec<_> = (0..8_000).map(|_| Flow::new(&config, 0)).collect();
    flows.iter_mut().for_each(|flow| flow.carry(&config, 50));
    let mut next = 0;
    group.bench_function(BenchmarkId::new("cubic wide", flows.len()), |bencher| {
        cpu::measure(bencher, || {
            let mut arrived = 0;
            while arrived < SEGMENTS {
                next = (next + 1) % flows.len();
                arrived += flows[next].step(&config);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, tcp);
criterion_main!(benches);
