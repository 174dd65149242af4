//! The coordinator's state when its process dies: by SIGKILL at any moment, or in the middle of a write.
//!
//! `TIDEGATE_SLOW_TESTS=1` repeats more often.

#[path = "../../../tests/skipped.rs"]
mod skipped;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use tidegate_net::flashflow::Record;
use tidegate_net::flashflow::store::Store;
use tidegate_net::identity::{hex, random};

/// A forked process holds this one's locks until it runs its program, so only one test may run at a time.
static FORKING: Mutex<()> = Mutex::new(());

/// Environment variable with the state directory of the dying process.
const STATE: &str = "TIDEGATE_TEST_STATE";

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("tidegate-dying-{}", hex(&random::<8>()))))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn slow() -> bool {
    std::env::var_os("TIDEGATE_SLOW_TESTS").is_some()
}

/// The process that dies: appends records and prints their numbers. Without [`STATE`] it does nothing.
#[test]
fn appends_until_it_dies() {
    let Some(directory) = std::env::var_os(STATE) else { return };
    let (mut store, records) = Store::open(Path::new(&directory)).unwrap();
    let mut out = std::io::stdout().lock();
    for n in records.len() as u64 + 1.. {
        store.append(&Record::Started { unix: n, version: "1".into(), fresh: false }).unwrap();
        writeln!(out, "on disk: {n}").unwrap();
    }
}

/// Runs that process by `command` until `end` ends it; returns the last record reported as durable.
fn last_on_disk(
    mut command: Command,
    state: &Path,
    end: impl FnOnce(&mut std::process::Child),
) -> Option<usize> {
    let arguments = ["--exact", "appends_until_it_dies", "--nocapture"];
    let command = command.args(arguments).env(STATE, state).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    end(&mut child);
    assert!(!child.wait().unwrap().success(), "it does not end by itself");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| line.split_once("on disk: ")?.1.parse().ok()).last()
}

/// Every record reported as durable is there, in order and once; one more may be.
fn check(state: &Path, on_disk: Option<usize>, what: &str) {
    let (_, records) = Store::open(state).unwrap_or_else(|error| panic!("{what}: {error}"));
    let times: Vec<u64> = records.iter().filter_map(Record::unix).collect();
    assert_eq!(times, (1..=records.len() as u64).collect::<Vec<_>>(), "{what}");
    if let Some(on_disk) = on_disk {
        assert!((on_disk..=on_disk + 1).contains(&records.len()), "{what}: {on_disk}, {}", records.len());
    }
}

#[test]
fn a_killed_process_keeps_all_data_on_disk() {
    let _alone = FORKING.lock();
    let state = Scratch::new();
    for round in 0..if slow() { 500 } else { 15 } {
        let [wait] = random::<1>();
        let command = Command::new(std::env::current_exe().unwrap());
        let on_disk = last_on_disk(command, &state.0, |child| {
            std::thread::sleep(Duration::from_millis(u64::from(wait)));
            child.kill().unwrap();
        });
        check(&state.0, on_disk, &format!("round {round}, killed after {wait} ms"));
    }
}

/// A file size limit: the write that would exceed it is cut, and its process is killed (SIGXFSZ).
#[test]
fn a_write_that_ends_anywhere_leaves_whole_records() {
    let _alone = FORKING.lock();
    if Command::new("prlimit").arg("--version").output().is_err() {
        return skipped::skipped("writes that end in mid-record", "prlimit (util-linux)");
    }
    for bytes in (1..70_000).step_by(if slow() { 61 } else { 4_999 }) {
        let state = Scratch::new();
        let mut command = Command::new("prlimit");
        command.arg(format!("--fsize={bytes}")).arg(std::env::current_exe().unwrap());
        let on_disk = last_on_disk(command, &state.0, |_| {});
        check(&state.0, on_disk, &format!("files of {bytes} bytes"));
        // With room again, the store can be appended to.
        let (mut store, records) = Store::open(&state.0).unwrap();
        let next = Record::Started { unix: records.len() as u64 + 1, version: "1".into(), fresh: false };
        store.append(&next).unwrap();
        drop(store);
        check(&state.0, None, &format!("after files of {bytes} bytes"));
    }
}
