//! Says that no file descriptor is free: one line a minute for the whole process, because its threads share the limit.

use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::line_a_minute::LineAMinute;
use crate::{clock, os};

/// Strangers decide how many connections fail.
static SAID: Mutex<LineAMinute> = Mutex::new(LineAMinute::new());

/// When it happened last, seconds since 1970; 0: never.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Logs an error that says so. Others are the caller's to report.
pub(crate) fn note(error: &io::Error) {
    let Some(cause) = os::descriptors_exhausted(error) else { return };
    LAST.fetch_max(clock::unix(), Ordering::Relaxed);
    let due = SAID.lock().expect("nobody panics while counting").count(clock::now());
    if let Some(failures) = due {
        let cure =
            "raise the limit of open files (LimitNOFILE of systemd), or lower `connections` of [limits]";
        tracing::warn!(failures, cause, cure, "no free file descriptor");
    }
}

/// When no descriptor was free for the last time, seconds since 1970.
pub(crate) fn last() -> Option<u64> {
    Some(LAST.load(Ordering::Relaxed)).filter(|last| *last > 0)
}

/// Logs it if it is the likely cause of an error that does not tell, such as a resolver's.
pub(crate) fn check() {
    if let Err(error) = File::open("/dev/null") {
        note(&error);
    }
}
