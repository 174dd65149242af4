//! Independent pieces of work on as many threads as the monitor grants.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::monitor::Monitor;
use crate::scoreboard::RunError;

/// Does jobs, each on one thread, until all are done or the user stops: results in the jobs' order, none for jobs
/// that were not begun.
pub fn each<J: Sync, R: Send>(
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

/// Does all jobs. `work` calls its second argument from time to time with the share it has done, and should end when
/// that gives false.
///
/// # Errors
/// The first error of a job; [`RunError::Stopped`] if the user stopped it.
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
