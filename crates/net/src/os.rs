//! Interfaces that differ between operating systems: private files, signals, processor time, Unix sockets. A missing
//! function returns an error that names it.

#[cfg(not(unix))]
mod elsewhere;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use elsewhere::*;
#[cfg(unix)]
pub use unix::*;

/// The number of files that this process may open, after [raising](raise_descriptors) the limit.
pub fn descriptors() -> u64 {
    // The usual soft limit, if the system does not say.
    raise_descriptors().unwrap_or(1024)
}

/// A signal's request to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reload the configuration (SIGHUP).
    Reload,
    /// Terminate (SIGTERM, Ctrl-C).
    End,
}

/// A signal to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Terminate as by Ctrl-C (SIGINT).
    Interrupt,
    /// Suspend (SIGSTOP).
    Stop,
}
