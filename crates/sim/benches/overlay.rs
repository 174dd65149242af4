//! Whole runs: delivered data cells per second of one core, TCP on. Criterion reports cells as elements.

mod networks;

use std::ops::ControlFlow;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::registry::{CONTROLS, SCHEDULERS};
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::{System, Transport};
use tidegate_sim::world;

/// A recorder that does nothing and that the optimiser cannot remove.
#[derive(Default)]
struct Count(u64);

impl Recorder for Count {
    fn record(&mut self, now: Time, _: &Observation) {
        self.0 = self.0.wrapping_add(now.0);
    }
}

/// Vanilla Tor, and variants with one other transport, scheduler or control.
fn systems() -> Vec<System> {
    let named = |name: &str| System { name: name.into(), ..System::default() };
    let mut systems = vec![named("vanilla"), System { transport: Transport::PerCircuit, ..named("pctcp") }];
    let schedulers = SCHEDULERS.iter().skip(1);
    systems.extend(schedulers.map(|part| System { scheduler: part.by_default(), ..named(part.name) }));
    let controls = CONTROLS.iter().skip(1);
    systems.extend(controls.map(|part| System { control: part.by_default(), ..named(part.name) }));
    systems
}

fn runs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("overlay");
    group.sample_size(10);
    let lasts = |seconds| if networks::is_measured() { Span::from_secs(seconds) } else { Span::from_secs(1) };
    let plans = [
        ("bottleneck", networks::bottleneck(lasts(60))),
        ("own-links", networks::own_links(None, lasts(10))),
        ("buckets", networks::own_links(Some(networks::LARGE_BUCKET), lasts(10))),
        ("100x1000", networks::random(100, 1000, lasts(8))),
    ];
    for (name, plan) in plans {
        for system in systems() {
            let run = || {
                let mut count = Count::default();
                world::run(&plan, &system, Seed::root(1), &mut count, &mut |_| ControlFlow::Continue(()))
            };
            group.throughput(Throughput::Elements(run().cells_delivered));
            group.bench_with_input(BenchmarkId::new(name, &system.name), &(), |bench, ()| bench.iter(run));
        }
    }
    group.finish();
}

criterion_group!(benches, runs);
criterion_main!(benches);
