//! Systems without file modes, Unix signals and Unix sockets. Untested.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io;
use std::net::{TcpStream as BlockingStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command};

use tokio::net::TcpStream;

use super::{Request, Signal};

fn unsupported<T>(what: &str) -> io::Result<T> {
    let cause = format!("this system does not support {what}; use Linux or another Unix");
    Err(io::Error::new(io::ErrorKind::Unsupported, cause))
}

/// Stands for a connection to a Unix socket.
pub type LocalStream = TcpStream;
pub use tokio::net::tcp::{OwnedReadHalf as LocalReadHalf, OwnedWriteHalf as LocalWriteHalf};

/// Connects to a Unix socket.
///
/// # Errors
/// Always.
pub(crate) async fn connect(_: &Path) -> io::Result<LocalStream> {
    unsupported("Unix sockets")
}

/// As [`connect`], blocking.
///
/// # Errors
/// Always.
pub fn connect_and_block(_: &Path) -> io::Result<BlockingStream> {
    unsupported("Unix sockets")
}

/// Options for opening files that only their owner can read.
///
/// # Errors
/// Always: keys must not be readable by others.
pub fn private_file() -> io::Result<OpenOptions> {
    unsupported("files that only their owner can read, which keys need")
}

/// A builder of directories that only their owner can enter.
///
/// # Errors
/// Always.
pub fn private_directory() -> io::Result<DirBuilder> {
    unsupported("directories that only their owner can enter, which keys need")
}

/// The file mode, if it grants access to others than the owner.
///
/// # Errors
/// Always: the system lacks file modes.
pub fn open_to_others(_: &Metadata) -> io::Result<Option<u32>> {
    unsupported("files that only their owner can read, which keys need")
}

/// Processor time of each thread of another process, seconds. Unknown on this system: empty.
pub fn thread_cpu_s_of(_: u32) -> BTreeMap<u32, f64> {
    BTreeMap::new()
}

/// Gives every thread of another process the lowest priority. Does nothing on this system.
pub fn yield_to_others(_: u32) {}

/// The limit of open sockets. Not limited on this system.
///
/// # Errors
/// Never on this system.
pub fn raise_descriptors() -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Why no file can be opened; not known on this system.
pub(crate) fn descriptors_exhausted(_: &io::Error) -> Option<String> {
    None
}

/// Sets the receive and send buffer of a datagram socket. Does nothing on this system.
pub(crate) fn ask_for_buffers(_: &UdpSocket, _: [usize; 2]) {}

/// Bytes that a socket has received and that this process has not read; unknown here, so 0.
pub(crate) fn unread<T>(_: &T) -> u64 {
    0
}

/// A duplicate handle of a socket. Never constructed on this system.
#[derive(Debug)]
pub enum Duplicate {}

/// Duplicates a socket's handle, to query the kernel about it.
///
/// # Errors
/// Always.
pub(crate) fn duplicate<T>(_: &T) -> io::Result<Duplicate> {
    unsupported("queries about connections")
}

/// Does nothing.
pub(crate) fn keep_from_terminal(command: &mut Command) -> &mut Command {
    command
}

/// Sends another process a signal.
///
/// # Errors
/// Always.
pub fn send_signal(_: &Child, _: Signal) -> io::Result<()> {
    unsupported("signals")
}

/// The signals that this process receives.
#[derive(Debug)]
pub struct Signals;

impl Signals {
    /// Starts to listen for signals.
    ///
    /// # Errors
    /// Never on this system.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    /// Waits for Ctrl-C, the only signal on this system.
    pub async fn next(&mut self) -> Request {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Request::End,
            Err(_) => std::future::pending().await,
        }
    }
}
