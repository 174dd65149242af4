//! What operating systems do each in their own way: private files, signals, processor time, sockets in files. The rest of
//! this crate and of the tool is the same on all of them. What a system cannot do is an error that says so.

#[cfg(not(unix))]
mod elsewhere;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use elsewhere::*;
#[cfg(unix)]
pub use unix::*;

/// What signals ask of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read the configuration again (SIGHUP).
    Reload,
    /// End (SIGTERM, Ctrl-C).
    End,
}

/// What another process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End as Ctrl-C does.
    Interrupt,
    /// Stand still until killed.
    Stop,
}
