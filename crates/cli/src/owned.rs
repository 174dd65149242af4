//! Children that run this tool and end with this process, however it ends: even by SIGKILL or a closed standard output.

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::temporary;

/// Environment variable with the temporary folders of the parent.
const FOLDERS: &str = "TIDEGATE_FOLDERS_OF_PARENT";

/// How often, and at which interval, a child looks for files of a parent that has ended.
const LOOKS: usize = 20;
const LOOK: Duration = Duration::from_millis(50);

/// A command that runs this tool as such a child. Its starter keeps the child's standard input open.
///
/// # Errors
/// If the path of this tool is unknown.
pub fn command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // This process never writes to the pipe. The system closes it when this process ends.
    command.arg("--owned").stdin(Stdio::piped());
    if let Ok(folders) = std::env::join_paths(temporary::all()) {
        command.env(FOLDERS, folders);
    }
    Ok(command)
}

/// Keeps a terminal's Ctrl-C from a child, so that its parent ends it. A child that ends before its parent can look like a
/// failure.
pub fn keep_from_terminal(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Runs such a child to its end and returns what it printed to standard output, and to standard error if that is piped.
///
/// # Errors
/// If it cannot be started or read.
pub fn output(mut command: Command) -> io::Result<Output> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    // `wait_with_output` closes it.
    let _open = child.stdin.take();
    child.wait_with_output()
}

/// Whether the user stopped such a child: by a signal, or with the exit code of Ctrl-C.
pub fn was_stopped(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code == 130)
}

/// Ends this process when its parent ends. If the parent was killed, its temporary folders are removed.
pub fn end_with_parent() {
    // A process that SIGSTOP has stopped does not read, so it must continue first.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
    let folders: Vec<PathBuf> =
        std::env::var_os(FOLDERS).map(|list| std::env::split_paths(&list).collect()).unwrap_or_default();
    #[cfg(unix)]
    let parent = std::os::unix::process::parent_id();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        temporary::remove_all();
        #[cfg(unix)]
        remove_after(parent, &folders);
        std::process::exit(0);
    });
}

/// Removes the folders of a parent that has ended. A parent that goes on removes them itself.
#[cfg(unix)]
fn remove_after(parent: u32, folders: &[PathBuf]) {
    // The system closes pipes before it gives the children another parent. Other children may still write files.
    for _ in 0..LOOKS {
        let left: Vec<&PathBuf> = folders.iter().filter(|path| path.exists()).collect();
        if left.is_empty() {
            return;
        }
        if std::os::unix::process::parent_id() != parent {
            for path in left {
                let _ = std::fs::remove_dir_all(path);
            }
        }
        thread::sleep(LOOK);
    }
}
