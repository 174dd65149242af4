//! Linux and its relatives.

use std::fs::{DirBuilder, Metadata, OpenOptions, read_to_string};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, kill_process, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind, signal};

use super::{Request, Signal};

/// A connection to a socket that is a file.
pub type LocalStream = UnixStream;
pub use tokio::net::unix::{OwnedReadHalf as LocalReadHalf, OwnedWriteHalf as LocalWriteHalf};

/// Connects to a socket that is a file.
///
/// # Errors
/// If nobody listens there.
pub async fn connect(path: &Path) -> io::Result<LocalStream> {
    UnixStream::connect(path).await
}

/// As [`connect`], where nothing else has to go on meanwhile.
///
/// # Errors
/// If nobody listens there.
pub fn connect_and_block(path: &Path) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect(path)
}

/// To open files with that their owner alone can read.
///
/// # Errors
/// None here.
pub fn private_file() -> io::Result<OpenOptions> {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    Ok(options)
}

/// To make directories with that their owner alone can enter.
///
/// # Errors
/// None here.
pub fn private_directory() -> io::Result<DirBuilder> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    Ok(builder)
}

/// The mode of a file, if others than its owner may do something with it.
///
/// # Errors
/// None here.
pub fn open_to_others(about: &Metadata) -> io::Result<Option<u32>> {
    Ok(Some(about.mode() & 0o777).filter(|mode| mode & 0o077 != 0))
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Processor time of this process in seconds.
pub fn process_cpu_s() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Processor time of this thread in seconds.
pub fn thread_cpu_s() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

/// The most memory that this process has had, bytes, from `/proc`; 0 where there is none.
pub fn peak_memory() -> u64 {
    memory("self", "VmHWM:").unwrap_or(0)
}

/// The memory that another process has, bytes, from `/proc`, where there is one.
pub fn memory_of(process: u32) -> Option<u64> {
    memory(&process.to_string(), "VmRSS:")
}

/// A line of a process's status (proc(5)) in bytes.
fn memory(process: &str, line: &str) -> Option<u64> {
    let status = read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|rest| rest.strip_prefix(line))?.split_whitespace().next()?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

/// Processor time of another process in seconds, from `/proc`; 0 where there is none.
pub fn cpu_s_of(process: u32) -> f64 {
    let Ok(stat) = read_to_string(format!("/proc/{process}/stat")) else { return 0.0 };
    // The name, in parentheses, may hold spaces; user and system time are fields 14 and 15.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
}

/// Raises the limit of open files to what the system allows (RLIMIT_NOFILE's hard limit; shells begin with
/// 1024); gives the limit that holds now.
///
/// # Errors
/// If the system refuses.
pub fn raise_descriptors() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// Asks for so many bytes of datagrams, received and to be sent, to wait at a socket. More than the system gives is not asked for twice.
pub fn ask_for_buffers(socket: &UdpSocket, [received, sent]: [usize; 2]) {
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, received);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, sent);
}

/// Another handle to a socket.
pub type Duplicate = OwnedFd;

/// Makes another handle to a socket, to ask the kernel about it.
///
/// # Errors
/// If there are too many.
pub fn duplicate(socket: &impl AsFd) -> io::Result<Duplicate> {
    socket.as_fd().try_clone_to_owned()
}

/// Sends another process a signal.
///
/// # Errors
/// If it has ended, or may not be sent one.
pub fn send_signal(process: &Child, signal: Signal) -> io::Result<()> {
    let signal = match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Stop => rustix::process::Signal::STOP,
    };
    Ok(kill_process(Pid::from_child(process), signal)?)
}

/// The signals of this process. As long as this lives, none of them ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    hangup: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    /// Listens from now on.
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

    /// Waits for the next.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.hangup.recv() => Request::Reload,
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
        }
    }
}
