//! Says that no file descriptor is free: one line a minute for the whole process, because its threads share the limit.

use std::fs::File;
use std::io;
use std::sync::Mutex;

use crate::line_a_minute::LineAMinute;
use crate::{clock, os};

/// Strangers decide how many connections fail.
static SAID: Mutex<LineAMinute> = Mutex::new(LineAMinute::new());

/// Logs an error that says so. Others are the caller's to report.
pub(crate) fn note(error: &io::Error) {
    let Some(cause) = os::descriptors_exhausted(error) else { return };
    let due = SAID.lock().expect("nobody panics while counting").count(clock::now());
    if let Some(failures) = due {
        tracing::warn!(failures, cause, "no free file descriptor");
    }
}

/// Logs it if it is the likely cause of an error that does not tell, such as a resolver's.
pub(crate) fn check() {
    if let Err(error) = File::open("/dev/null") {
        note(&error);
    }
}
