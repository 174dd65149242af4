//! Runs independent jobs on the number of threads that the monitor grants.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::monitor::Monitor;
use crate::scoreboard::RunError;

/// Runs each job on one thread, until all are complete or the user stops.
///
/// Returns the results in the order of the jobs; `None` for jobs that were not started.
pub(crate) fn each<J: Sync, R: Send>(
    jobs: &[J],
    monitor: &dyn Monitor,
    work: impl Fn(usize, &J) -> R + Sync,
) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let thread = || {
        while !monitor.stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return };
            let result = work(index, job);
            results.lock().expect("no thread panics with the lock held")[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..monitor.jobs().clamp(1, jobs.len().max(1)) {
            scope.spawn(thread);
        }
        thread();
    });
    results.into_inner().expect("no thread panics with the lock held")
}

/// Runs all jobs. `work` reports the share it has done to its second argument, and must end when that returns false.
///
/// # Errors
/// The first error of a job; [`RunError::Stopped`] if the user stopped the run.
pub fn run_all<J: Sync, R: Send>(
    jobs: &[J],
    monitor: &dyn Monitor,
    name: impl Fn(&J) -> &str + Sync,
    work: impl Fn(&J, &dyn Fn(f64) -> bool) -> Result<R, RunError> + Sync,
) -> Result<Vec<R>, RunError> {
    let results = each(jobs, monitor, |index, job| {
        let goes_on = |done: f64| {
            let done = (index as f64 + done.clamp(0.0, 1.0)) / jobs.len() as f64;
            monitor.progress("runs", name(job), done);
            !monitor.stopped()
        };
        work(job, &goes_on)
    });
    if monitor.stopped() {
        return Err(RunError::Stopped);
    }
    results.into_iter().map(|result| result.unwrap_or(Err(RunError::Stopped))).collect()
}
