//! Nanoseconds per pop and push of the event queue in the hold model: a constant number of events is
//! pending, each event taken is scheduled again after a delay. Half of the delays are short (serialisation,
//! local queues), half long (propagation, timers). `std`'s heap is the baseline.

mod cpu;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_sim::queue::Queue;

/// Pops and pushes per measured iteration.
const STEPS: usize = 10_000;

/// Delays as a network simulator has them: 3/8 up to 400 us, 7/16 10-100 ms, and some of 0, 40 ms (delayed
/// ACK) and 200-1200 ms (retransmission timers).
fn delay(draws: &mut Random) -> Span {
    match draws.below(16) {
        0..=5 => Span(draws.below(400_000) as u64),
        6..=12 => Span(10_000_000 + draws.below(90_000_000) as u64),
        13 => Span::ZERO,
        14 => Span::from_millis(40),
        _ => Span(200_000_000 + draws.below(1_000_000_000) as u64),
    }
}

/// A table of delays, so that drawing them is not measured.
fn delays() -> Vec<Span> {
    let mut draws = Seed::root(1).random();
    (0..1 << 16).map(|_| delay(&mut draws)).collect()
}

fn wheel<const WORDS: usize>(criterion: &mut Criterion, pending: usize) {
    let delays = delays();
    let mut queue = Queue::new();
    for i in 0..pending {
        queue.push(Time::ZERO + delays[i & 0xffff], [i as u64; WORDS]);
    }
    let mut next = 0;
    let mut run = |steps: usize| {
        for _ in 0..steps {
            let (now, event) = queue.pop().expect("the number pending is constant");
            queue.push(now + delays[next & 0xffff], black_box(event));
            next += 1;
        }
    };
    run(pending);
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(STEPS as u64));
    let id = BenchmarkId::new(format!("wheel/{}B", 8 * WORDS), pending);
    group.bench_function(id, |bencher| cpu::measure(bencher, || run(STEPS)));
}

fn binary<const WORDS: usize>(criterion: &mut Criterion, pending: usize) {
    let delays = delays();
    let mut heap = BinaryHeap::new();
    for i in 0..pending {
        heap.push(Reverse((Time::ZERO + delays[i & 0xffff], i, [i as u64; WORDS])));
    }
    let mut next = pending;
    let mut run = |steps: usize| {
        for _ in 0..steps {
            let Reverse((now, _, event)) = heap.pop().expect("the number pending is constant");
            heap.push(Reverse((now + delays[next & 0xffff], next, black_box(event))));
            next += 1;
        }
    };
    run(pending);
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(STEPS as u64));
    let id = BenchmarkId::new(format!("std/{}B", 8 * WORDS), pending);
    group.bench_function(id, |bencher| cpu::measure(bencher, || run(STEPS)));
}

fn queue(criterion: &mut Criterion) {
    for pending in [1_000, 30_000, 1_000_000] {
        wheel::<2>(criterion, pending);
        wheel::<4>(criterion, pending);
        binary::<2>(criterion, pending);
        binary::<4>(criterion, pending);
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);
