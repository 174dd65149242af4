//! Included by tests that need what not every machine has. `make test` counts what they say.

use std::io::Write;

/// Says that a test, or a part of it, is left out, and what would bring it back. The line goes to standard error
/// and to the file that TIDEGATE_SKIPPED names.
pub fn skipped(what: &str, missing: &str) {
    eprintln!("skipped: {what}: needs {missing}");
    let Some(list) = std::env::var_os("TIDEGATE_SKIPPED") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    // One write: tests run side by side.
    let line = format!("{missing}: {what}\n");
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}
