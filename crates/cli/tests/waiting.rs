//! Waiting for conditions, on machines that may pause or be slow.

use std::time::Duration;

use rustix::process::Signal;
use tidegate_control::units::Span;
use tidegate_net::clock;

/// Waits for at most a minute.
pub fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let since = clock::now();
    while !is() {
        assert!(clock::now().since(since) < Span::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process handles this signal, which would end it before.
pub fn until_it_handles(process: u32, signal: Signal) {
    soon(&format!("{process} handles {signal:?}"), || {
        // proc_pid_status(5): the first signal is the lowest bit of this mask.
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    });
}

/// Repeats a measurement until its result is good, at most this many times, and returns the last result.
pub fn repeated<T>(times: usize, mut measure: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> T {
    let mut measured = measure();
    for _ in 1..times {
        if is_good(&measured) {
            break;
        }
        measured = measure();
    }
    measured
}
