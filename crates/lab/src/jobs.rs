//! Independent pieces of work on as many threads as the monitor grants.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::monitor::Monitor;
use crate::scoreboard::RunError;

/// Does all jobs, each on one thread; results in the jobs' order. `work` calls its second argument from time to
/// time with the share it has done, and should end when that gives false.
///
/// # Errors
/// The first error of a job; [`RunError::Stopped`] if the user stopped it.
pub fn run_all<J: Sync, R: Send>(
    jobs: &[J],
    monitor: &dyn Monitor,
    name: impl Fn(&J) -> &str + Sync,
    work: impl Fn(&J, &dyn Fn(f64) -> bool) -> Result<R, RunError> + Sync,
) -> Result<Vec<R>, RunError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let thread = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return Ok(()) };
            let goes_on = |done: f64| {
                let done = (index as f64 + done.clamp(0.0, 1.0)) / jobs.len() as f64;
                monitor.progress("runs", name(job), done);
                !monitor.stopped()
            };
            let result = work(job, &goes_on)?;
            results.lock().expect("no thread panics with the lock held")[index] = Some(result);
            if monitor.stopped() {
                return Err(RunError::Stopped);
            }
        }
    };
    let threads = monitor.jobs().clamp(1, jobs.len().max(1));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("a run does not panic"))
    })?;
    let results = results.into_inner().expect("no thread panics with the lock held");
    Ok(results.into_iter().map(|result| result.expect("every job was taken")).collect())
}
