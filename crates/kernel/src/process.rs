//! Processor time and memory of processes, and the calendar.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, for files. Do not order events or measure spans with it.
pub fn unix_s() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the edge of the tool: files name calendar times")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Processor time of this process, seconds; 0 where it is unknown.
pub fn process_cpu_s() -> f64 {
    #[cfg(unix)]
    return seconds(libc::CLOCK_PROCESS_CPUTIME_ID);
    #[cfg(not(unix))]
    0.0
}

/// Processor time of this thread, seconds; 0 where it is unknown.
pub fn thread_cpu_s() -> f64 {
    #[cfg(unix)]
    return seconds(libc::CLOCK_THREAD_CPUTIME_ID);
    #[cfg(not(unix))]
    0.0
}

/// Processor time of another process with all its threads, seconds; `None` if it has ended or its time is unknown.
pub fn cpu_s_of(process: u32) -> Option<f64> {
    #[cfg(target_os = "linux")]
    {
        let process = libc::pid_t::try_from(process).ok()?;
        let mut clock = 0;
        #[expect(unsafe_code, reason = "the call writes one clock identifier, which `clock` is")]
        let status = unsafe { libc::clock_getcpuclockid(process, &raw mut clock) };
        // The process may have ended between the two calls.
        if status == 0 { read(clock) } else { None }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = process;
        None
    }
}

/// Peak memory of this process, bytes, from `/proc`; 0 without `/proc`.
pub fn peak_memory() -> u64 {
    memory("self", "VmHWM:").unwrap_or(0)
}

/// Memory of another process, bytes, from `/proc`; `None` without `/proc`.
pub fn memory_of(process: u32) -> Option<u64> {
    memory(&process.to_string(), "VmRSS:")
}

/// A line of a process's status file (proc(5)), bytes.
fn memory(process: &str, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|rest| rest.strip_prefix(line))?.split_whitespace().next()?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

#[cfg(unix)]
fn seconds(clock: libc::clockid_t) -> f64 {
    read(clock).expect("POSIX has the clocks of this process and of this thread")
}

/// Reads a clock through the C library. A caller that resolves the vDSO itself crashes under valgrind, which hides it.
#[cfg(unix)]
fn read(clock: libc::clockid_t) -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "the call writes one timespec, which `time` is")]
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (status == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_grows_and_an_ended_one_has_none() {
        let me = std::process::id();
        let before = cpu_s_of(me).expect("this process runs");
        let mut sum = 0_u64;
        while process_cpu_s() < before + 0.005 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_s_of(me).expect("this process runs") > before + 0.004);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_s_of(child.id()), None);
    }
}
