//! Terminal output of the tool: progress, notices, colours and Ctrl-C.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::folder;

/// Whether standard error shows colours: it is a terminal and NO_COLOR is not set (no-color.org).
fn has_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Colours text red on a terminal.
pub fn red(text: &str) -> String {
    if has_colour() { format!("\x1b[1;31m{text}\x1b[0m") } else { text.to_owned() }
}

/// Colours text yellow on a terminal.
pub fn yellow(text: &str) -> String {
    if has_colour() { format!("\x1b[1;33m{text}\x1b[0m") } else { text.to_owned() }
}

/// Ends the process when standard output or error cannot be written, where `println!` and `eprintln!` panic.
///
/// A reader that left, as in `tidegate ... | head`, ends it silently. Any other cause is named on standard error, if
/// that still accepts text.
pub fn end_when_output_fails() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        let Some((stream, cause)) = unwritable(message) else { return report(panic) };
        #[cfg(feature = "live")]
        crate::temporary::remove_all();
        if cause.contains("Broken pipe") {
            std::process::exit(141);
        }
        let error =
            InputError::new(stream, format!("cannot be written: {cause}"), "write it to another place");
        complain(&error);
        std::process::exit(2);
    }));
}

/// The stream and the cause in the message of a panic of `println!` or `eprintln!`.
fn unwritable(message: &str) -> Option<(&'static str, &str)> {
    let (stream, cause) = message.strip_prefix("failed printing to ")?.split_once(": ")?;
    Some((if stream == "stdout" { "standard output" } else { "standard error" }, cause))
}

/// Prints an error. Unlike `eprintln!` it goes on if standard error cannot be written, and the exit code tells.
pub fn complain(error: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{} {error}", red("error:"));
}

/// Width of the terminal on standard output in columns, if it is a terminal.
pub fn terminal_width() -> Option<u16> {
    let size = ::console::Term::stdout().size_checked();
    size.map(|(_, columns)| columns).filter(|columns| *columns > 60)
}

/// The commit that the tool was built from.
pub const COMMIT: &str = env!("TIDEGATE_COMMIT");

/// The command line as a shell reads it, for manifests.
pub fn command_line() -> String {
    // Names of files need not be UTF-8.
    std::env::args_os().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word of a shell's command, in quotes if needed.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Fails if [`write_results`] could not write there. Call it before a long run.
pub fn check_results_place(
    contents: &folder::Contents,
    out: Option<&Path>,
    base: &Path,
    force: bool,
) -> Result<(), InputError> {
    out.map_or_else(
        || folder::check_new(&base.join("new")),
        |place| folder::check_place(place, contents, force),
    )
}

/// Writes results to `out`, or to a new numbered folder in `base` with a link `latest`; returns the folder.
pub fn write_results(
    files: Vec<folder::ResultFile>,
    contents: &folder::Contents,
    more: serde_json::Value,
    out: Option<PathBuf>,
    base: &Path,
) -> Result<PathBuf, InputError> {
    let numbered = out.is_none();
    let place = out.map_or_else(|| folder::numbered(base), Ok)?;
    folder::write(files, contents, more, &place)?;
    if numbered {
        folder::point_latest(&place);
    }
    Ok(place)
}

/// Prints a notice once per process, about accepted input that the user should change.
pub fn notice(text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        eprintln!("{} {text}", yellow("notice:"));
    }
}

/// Number of times that Ctrl-C was pressed.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Seconds between two progress lines if standard error is not a terminal.
const LINE_EVERY_S: f64 = 60.0;

/// Shows progress on standard error: a bar on a terminal, otherwise one line per minute.
pub struct Console {
    started: Instant,
    jobs: usize,
    bar: ProgressBar,
    /// Completed share of each piece of work.
    done: Mutex<BTreeMap<String, f64>>,
    /// Number of pieces of work; 0 if unknown.
    total: usize,
    title: Mutex<String>,
    /// Time of the next progress line.
    next_line_s: Mutex<f64>,
}

impl Console {
    /// Makes a console for `total` pieces of work (0: unknown) on `jobs` threads (0: one per core).
    ///
    /// The first Ctrl-C asks the work to stop; the second exits the process.
    #[expect(clippy::disallowed_methods, reason = "the command line owns the clock")]
    pub fn new(total: usize, jobs: usize) -> Console {
        // The handler is already installed if this is not the first console of the process.
        let _ = ctrlc::set_handler(|| {
            if INTERRUPTS.fetch_add(1, Ordering::SeqCst) > 0 {
                std::process::exit(130);
            }
        });
        let bar = ProgressBar::with_draw_target(Some(1_000_000), ProgressDrawTarget::stderr_with_hz(8));
        let colour = if has_colour() { ".cyan" } else { "" };
        let template = format!("{{bar:28{colour}}} {{percent:>3}} %  ETA {{eta}}  {{wide_msg}}");
        let style = ProgressStyle::with_template(&template).expect("the template is valid");
        bar.set_style(style.with_key("eta", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let left = time_left(state.elapsed(), f64::from(state.fraction()));
            let _ =
                text.write_str(&left.map_or_else(|| "-".to_owned(), |left| HumanDuration(left).to_string()));
        }));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Console {
            started: Instant::now(),
            jobs: if jobs == 0 { cores } else { jobs },
            bar,
            done: Mutex::default(),
            total,
            title: Mutex::default(),
            next_line_s: Mutex::new(LINE_EVERY_S),
        }
    }

    /// Sets the text before every message.
    pub fn title(&self, title: &str) {
        *self.title.lock().unwrap_or_else(PoisonError::into_inner) = format!("{title} ");
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The time that the rest takes at the average pace so far. A pace of the last moments, as indicatif has it, would give years
/// while a long step does not advance.
fn time_left(elapsed: Duration, share: f64) -> Option<Duration> {
    (share > 0.0).then(|| elapsed.mul_f64((1.0 / share - 1.0).clamp(0.0, 1e6)))
}

impl Monitor for Console {
    fn jobs(&self) -> usize {
        self.jobs
    }

    fn progress(&self, work: &str, state: &str, done: f64) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(work.to_owned(), done.clamp(0.0, 1.0));
        let share = all.values().sum::<f64>() / self.total.max(all.len()) as f64;
        self.bar.set_position((share * 1e6) as u64);
        let title = self.title.lock().unwrap_or_else(PoisonError::into_inner);
        let message = format!("{title}{work}: {state}");
        let mut next = self.next_line_s.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wall_s() >= *next && !std::io::stderr().is_terminal() {
            *next = self.wall_s() + LINE_EVERY_S;
            let left = time_left(self.started.elapsed(), share);
            let left = left.map_or_else(String::new, |left| format!("ETA {}  ", HumanDuration(left)));
            eprintln!("{:.0} %  {left}{message}", 100.0 * share);
        }
        self.bar.set_message(message);
    }

    fn notice(&self, text: &str) {
        self.bar.suspend(|| notice(text));
    }

    fn stopped(&self) -> bool {
        INTERRUPTS.load(Ordering::SeqCst) > 0
    }

    fn wall_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn unix_s(&self) -> u64 {
        tidegate_kernel::unix_s()
    }

    fn cpu_s(&self) -> f64 {
        tidegate_kernel::thread_cpu_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_panics_of_printing_are_about_output() {
        let full = "failed printing to stdout: No space left on device (os error 28)";
        assert_eq!(unwritable(full), Some(("standard output", "No space left on device (os error 28)")));
        let shut = "failed printing to stderr: Input/output error (os error 5)";
        assert_eq!(unwritable(shut), Some(("standard error", "Input/output error (os error 5)")));
        assert_eq!(unwritable("index out of bounds: the length is 1"), None);
    }

    #[test]
    fn the_time_left_grows_with_the_time_that_passed() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!(time_left(minutes(3), 0.0), None);
        assert_eq!(time_left(minutes(30), 0.5), Some(minutes(30)));
        assert_eq!(time_left(minutes(30), 1.0), Some(minutes(0)));
    }
}
