//! The edge of the tool: clock, progress bar, Ctrl-C, colour.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use tidegate_lab::monitor::Monitor;

/// Red on a terminal, plain elsewhere.
pub fn red(text: &str) -> String {
    if std::io::stderr().is_terminal() { format!("\x1b[1;31m{text}\x1b[0m") } else { text.to_owned() }
}

/// How often Ctrl-C was pressed.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Progress of one command on standard error; quiet when that is no terminal.
pub struct Console {
    started: Instant,
    jobs: usize,
    bar: ProgressBar,
    parts: Mutex<BTreeMap<String, f64>>,
    total: f64,
}

impl Console {
    /// A console for `total` pieces of work on `jobs` threads (0: one per core). The first Ctrl-C asks the
    /// work to stop, the second ends the process.
    #[expect(clippy::disallowed_methods, reason = "the tool's edge owns the clock")]
    pub fn new(total: usize, jobs: usize) -> Console {
        let _ = ctrlc::set_handler(|| {
            if INTERRUPTS.fetch_add(1, Ordering::SeqCst) > 0 {
                std::process::exit(130);
            }
        });
        let bar = ProgressBar::with_draw_target(Some(1_000_000), ProgressDrawTarget::stderr_with_hz(8));
        let style =
            ProgressStyle::with_template("{bar:32.cyan} {percent:>3} %  {msg}  [{elapsed}, {eta} left]")
                .expect("the template is fixed");
        bar.set_style(style);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = if jobs == 0 { cores } else { jobs };
        Console { started: Instant::now(), jobs, bar, parts: Mutex::default(), total: total.max(1) as f64 }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Monitor for Console {
    fn jobs(&self) -> usize {
        self.jobs
    }

    fn progress(&self, work: &str, state: &str, done: f64) {
        let mut parts = self.parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        parts.insert(work.to_owned(), done.clamp(0.0, 1.0));
        let share = parts.values().sum::<f64>() / self.total;
        self.bar.set_position((share.min(1.0) * 1e6) as u64);
        self.bar.set_message(format!("{work}: {state}"));
    }

    fn stopped(&self) -> bool {
        INTERRUPTS.load(Ordering::SeqCst) > 0
    }

    fn wall_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn cpu_s(&self) -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
}
