//! Benchmarks in processor time, so that other work on the machine counts less.

use std::time::Duration;

use criterion::Bencher;
use rustix::time::{ClockId, clock_gettime};

/// Measures `routine` by the processor time of this thread.
pub fn measure(bencher: &mut Bencher<'_>, mut routine: impl FnMut()) {
    bencher.iter_custom(|iterations| {
        let begin = used();
        (0..iterations).for_each(|_| routine());
        used() - begin
    });
}

fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
