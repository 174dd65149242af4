//! Tests: whatever ends a demonstration ends the processes that it started, and removes its files.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::waiting::soon;

/// Demonstrations that last for some seconds, and how many processes each starts.
const DEMOS: [(&str, usize); 4] = [
    ("stream demo --clients 3 --rate 500kbit/s --duration 10s", 4),
    ("overlay demo", 7),
    ("more demo", 10),
    ("flashflow demo --duration 10s --rate 10Mbit/s", 6),
];

/// A process, which may give its number to another one when it ends.
#[derive(Debug)]
struct Process {
    number: u32,
    started: String,
}

impl Process {
    fn of(number: u32) -> Option<Process> {
        let (_, started) = stat(number)?;
        Some(Process { number, started })
    }

    fn runs(&self) -> bool {
        stat(self.number).is_some_and(|(state, started)| state != "Z" && started == self.started)
    }
}

/// The state of a process, and when it started (proc(5)).
fn stat(process: u32) -> Option<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ').map(str::to_owned);
    Some((fields.next()?, fields.nth(18)?))
}

/// The processes that another has started.
pub fn children(of: &Child) -> Vec<u32> {
    children_of(of.id())
}

pub fn children_of(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let started =
        threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let number = |text: &str| text.parse().unwrap();
    started.flat_map(|text| text.split_whitespace().map(number).collect::<Vec<u32>>()).collect()
}

fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Starts a demonstration and ends it: by a signal, after one of its processes was stopped, or by closing its output.
fn end(arguments: &str, count: usize, how: Option<Signal>) {
    let name = format!("tidegate-demos-{}-{count}-{}", std::process::id(), how.map_or(0, Signal::as_raw));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments.split(' '))
        .env("TMPDIR", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Its next line ends it.
    let output = demo.stdout.take().filter(|_| how.is_some());
    let mut started: Vec<Process> = Vec::new();
    soon(&format!("{arguments} starts {count} processes"), || {
        let is_new = |number: &u32| started.iter().all(|process| process.number != *number);
        let new: Vec<u32> = children(&demo).into_iter().filter(is_new).collect();
        started.extend(new.into_iter().filter_map(Process::of));
        started.len() == count || demo.try_wait().unwrap().is_some()
    });
    assert!(!started.is_empty(), "{arguments} has started nothing");
    if let Some(how) = how {
        assert_eq!(started.len(), count, "{arguments}: {started:?}");
        signal(started[count / 2].number, Signal::STOP);
        signal(demo.id(), how);
    }
    let name = format!("{arguments} ends by {how:?}");
    soon(&name, || demo.try_wait().unwrap().is_some());
    drop(output);
    soon(&format!("{name}: {started:?} end"), || started.iter().all(|process| !process.runs()));
    let left = || std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    assert!(left().is_empty(), "{name}: {:?}", left());
    std::fs::remove_dir_all(&folder).unwrap();
}

fn end_all(how: Option<Signal>) {
    std::thread::scope(|scope| {
        for (arguments, count) in DEMOS {
            scope.spawn(move || end(arguments, count, how));
        }
    });
}

#[test]
fn a_killed_demonstration_leaves_no_process() {
    end_all(Some(Signal::KILL));
}

#[test]
fn a_terminated_demonstration_leaves_no_process() {
    end_all(Some(Signal::TERM));
}

#[test]
fn an_interrupted_demonstration_leaves_no_process() {
    end_all(Some(Signal::INT));
}

#[test]
fn a_demonstration_with_a_closed_output_leaves_no_process() {
    end_all(None);
}

/// Starts a demonstration with this many processes and interrupts it. Returns its exit code.
fn interrupted(arguments: &[&str], processes: usize) -> Option<i32> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    soon(&format!("{arguments:?} starts {processes} processes"), || children(&demo).len() >= processes);
    signal(demo.id(), Signal::INT);
    soon(&format!("{arguments:?} ends"), || demo.try_wait().unwrap().is_some());
    demo.wait().unwrap().code()
}

#[test]
fn a_demonstration_that_is_interrupted_before_its_end_says_so() {
    // One of seven roles has started.
    assert_eq!(interrupted(&["overlay", "demo"], 1), Some(130));
    // The download would take hours.
    assert_eq!(interrupted(&["overlay", "demo", "--bytes", "90 GB"], 7), Some(130));
}
