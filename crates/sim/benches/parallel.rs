//! Packets per second of the overlay of per-packet paths: 20 saturated peers, three hops. A packet counts
//! from its source to its destination including its acknowledgement.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::paths::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::Span;
use tidegate_sim::parallel::{Plan, world};

fn overlay(c: &mut Criterion) {
    let mut group = c.benchmark_group("parallel-paths");
    group.sample_size(10);
    for controller in ["aimd", "q-learning", "explicit", "explicit-or-aimd", "perfect", "random"] {
        // `cargo test` runs benches, too, to see that they work: then seconds will do.
        let is_measured = std::env::args().any(|argument| argument == "--bench");
        let plan = Plan::thesis(20, Span::from_secs(if is_measured { 200 } else { 2 }));
        let parameters = ControllerParameters::named(controller, 1500.0).expect("known");
        let run = || world::run(&plan, &parameters, Seed::root(1), &|_| true).expect("a sound plan");
        group.throughput(Throughput::Elements(run().total(0).sent));
        group.bench_function(controller, |b| b.iter(run));
    }
    group.finish();
}

criterion_group!(benches, overlay);
criterion_main!(benches);
