//! Children that run this tool and end with this process, however it ends: even by SIGKILL or a closed standard output.

use std::io;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;

use crate::temporary;

/// A command that runs this tool as such a child. Its starter keeps the child's standard input open.
///
/// # Errors
/// If the path of this tool is unknown.
pub fn command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // This process never writes to the pipe. The system closes it when this process ends.
    command.arg("--owned").stdin(Stdio::piped());
    Ok(command)
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

/// Ends this process when its parent ends.
pub fn end_with_parent() {
    // A process that SIGSTOP has stopped does not read, so it must continue first.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        temporary::remove_all();
        std::process::exit(0);
    });
}
