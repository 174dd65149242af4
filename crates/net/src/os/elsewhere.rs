//! Systems that know neither modes of files, nor signals, nor sockets in files. Nothing here has been run.

use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io;
use std::net::{TcpStream as BlockingStream, UdpSocket};
use std::path::Path;
use std::process::Child;

use tokio::net::TcpStream;

use super::{Request, Signal};

fn unsupported<T>(what: &str) -> io::Result<T> {
    let cause = format!("this system has no {what}; use Linux, or another Unix");
    Err(io::Error::new(io::ErrorKind::Unsupported, cause))
}

/// Stands for a connection to a socket that is a file.
pub type LocalStream = TcpStream;
pub use tokio::net::tcp::{OwnedReadHalf as LocalReadHalf, OwnedWriteHalf as LocalWriteHalf};

/// Connects to a socket that is a file.
///
/// # Errors
/// Always.
pub async fn connect(_: &Path) -> io::Result<LocalStream> {
    unsupported("sockets in files")
}

/// As [`connect`].
///
/// # Errors
/// Always.
pub fn connect_and_block(_: &Path) -> io::Result<BlockingStream> {
    unsupported("sockets in files")
}

/// To open files with that their owner alone can read.
///
/// # Errors
/// Always: keys are not written where others may read them.
pub fn private_file() -> io::Result<OpenOptions> {
    unsupported("files that their owner alone can read, where keys belong")
}

/// To make directories with that their owner alone can enter.
///
/// # Errors
/// Always.
pub fn private_directory() -> io::Result<DirBuilder> {
    unsupported("directories that their owner alone can enter, where keys belong")
}

/// The mode of a file, if others than its owner may do something with it.
///
/// # Errors
/// Always: it cannot be told.
pub fn open_to_others(_: &Metadata) -> io::Result<Option<u32>> {
    unsupported("files that their owner alone can read, where keys belong")
}

/// Processor time of this process in seconds; here it is not known.
pub fn process_cpu_s() -> f64 {
    0.0
}

/// Processor time of this thread in seconds; here it is not known.
pub fn thread_cpu_s() -> f64 {
    0.0
}

/// The most memory that this process has had; here it is not known.
pub fn peak_memory() -> u64 {
    0
}

/// The memory that another process has; here it is not known.
pub fn memory_of(_: u32) -> Option<u64> {
    None
}

/// Processor time of another process in seconds; here it is not known.
pub fn cpu_s_of(_: u32) -> f64 {
    0.0
}

/// How many sockets this process may have; here there is no limit to raise.
///
/// # Errors
/// None here.
pub fn raise_descriptors() -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Asks for so many bytes of datagrams, received and to be sent, to wait at a socket; here the system's own numbers stay.
pub fn ask_for_buffers(_: &UdpSocket, _: [usize; 2]) {}

/// Another handle to a socket; there are none.
#[derive(Debug)]
pub enum Duplicate {}

/// Makes another handle to a socket, to ask the kernel about it.
///
/// # Errors
/// Always.
pub fn duplicate<T>(_: &T) -> io::Result<Duplicate> {
    unsupported("way to ask about connections")
}

/// Sends another process a signal.
///
/// # Errors
/// Always.
pub fn send_signal(_: &Child, _: Signal) -> io::Result<()> {
    unsupported("signals")
}

/// The signals of this process.
#[derive(Debug)]
pub struct Signals;

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// None here.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    /// Waits for Ctrl-C, which is all there is.
    pub async fn next(&mut self) -> Request {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Request::End,
            Err(_) => std::future::pending().await,
        }
    }
}
