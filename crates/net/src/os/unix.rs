//! Linux and other Unix systems.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, DirEntry, Metadata, OpenOptions, read_dir, read_to_string};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, kill_process, setpriority_process, setrlimit};
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind, signal};

use super::{Request, Signal};

/// A connection to a Unix socket.
pub type LocalStream = UnixStream;
pub use tokio::net::unix::{OwnedReadHalf as LocalReadHalf, OwnedWriteHalf as LocalWriteHalf};

/// Connects to a Unix socket.
///
/// # Errors
/// If no process listens on it.
pub(crate) async fn connect(path: &Path) -> io::Result<LocalStream> {
    UnixStream::connect(path).await
}

/// As [`connect`], blocking.
///
/// # Errors
/// If no process listens on it.
pub fn connect_and_block(path: &Path) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect(path)
}

/// Options for opening files that only their owner can read.
///
/// # Errors
/// Never on Unix.
pub fn private_file() -> io::Result<OpenOptions> {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    Ok(options)
}

/// A builder of directories that only their owner can enter.
///
/// # Errors
/// Never on Unix.
pub fn private_directory() -> io::Result<DirBuilder> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    Ok(builder)
}

/// The file mode, if it grants access to others than the owner.
///
/// # Errors
/// Never on Unix.
pub fn open_to_others(about: &Metadata) -> io::Result<Option<u32>> {
    Ok(Some(about.mode() & 0o777).filter(|mode| mode & 0o077 != 0))
}

/// Processor time of each thread of another process by the thread's number, seconds, from `/proc`; empty without `/proc`.
pub fn thread_cpu_s_of(process: u32) -> BTreeMap<u32, f64> {
    let Ok(threads) = read_dir(format!("/proc/{process}/task")) else { return BTreeMap::new() };
    let cpu_s = |thread: DirEntry| {
        // A thread may have ended since it was listed. The first number is its time in nanoseconds.
        let times = read_to_string(thread.path().join("schedstat")).ok()?;
        let ns: f64 = times.split_whitespace().next()?.parse().ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, ns / 1e9))
    };
    threads.filter_map(|thread| cpu_s(thread.ok()?)).collect()
}

/// Gives every thread of another process the lowest priority.
pub fn yield_to_others(process: u32) {
    for thread in thread_cpu_s_of(process).keys() {
        // A thread may have ended since it was listed.
        let _ = setpriority_process(Pid::from_raw(*thread as i32), 19);
    }
}

/// Raises the soft limit of open files (RLIMIT_NOFILE, 1024 in most shells) to the hard limit. Returns the new limit.
///
/// # Errors
/// If the system refuses.
pub fn raise_descriptors() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// Why no file can be opened, and what to do, if an error says so.
pub(crate) fn descriptors_exhausted(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let process = std::process::id();
            Some(format!(
                "all {limit} files that the process may open (RLIMIT_NOFILE) are in use: new connections wait or fail; raise \
                 the limit with `prlimit --pid {process} --nofile=NUMBER`, or LimitNOFILE in its systemd unit"
            ))
        }
        Errno::NFILE => Some(
            "all files that the system may open are in use: new connections wait or fail; raise the limit with \
             `sysctl fs.file-max=NUMBER`"
                .into(),
        ),
        _ => None,
    }
}

/// Sets the receive and send buffer of a datagram socket. The kernel may grant less.
pub(crate) fn ask_for_buffers(socket: &UdpSocket, [received, sent]: [usize; 2]) {
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, received);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, sent);
}

/// Bytes that a socket has received and that this process has not read (FIONREAD); 0 if the kernel does not tell.
pub(crate) fn unread(socket: &impl AsFd) -> u64 {
    rustix::io::ioctl_fionread(socket).unwrap_or(0)
}

/// A duplicate handle of a socket.
pub type Duplicate = OwnedFd;

/// Duplicates a socket's handle, to query the kernel about it.
///
/// # Errors
/// If the process has too many open files.
pub(crate) fn duplicate(socket: &impl AsFd) -> io::Result<Duplicate> {
    socket.as_fd().try_clone_to_owned()
}

/// Keeps a terminal's Ctrl-C from a child, so that its parent ends it. A child that ends before its parent looks like a failure.
pub(crate) fn keep_from_terminal(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}

/// Sends another process a signal.
///
/// # Errors
/// If the process has ended, or permission is missing.
pub fn send_signal(process: &Child, signal: Signal) -> io::Result<()> {
    let signal = match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Stop => rustix::process::Signal::STOP,
    };
    Ok(kill_process(Pid::from_child(process), signal)?)
}

/// The signals that this process receives. While this exists, none of them ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    hangup: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    /// Starts to listen for signals.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.hangup.recv() => Request::Reload,
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
        }
    }
}
