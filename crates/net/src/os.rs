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

/// What the process is told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Read the configuration again (SIGHUP).
    Reload,
    /// End (SIGTERM, Ctrl-C).
    End,
}

/// What another process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// End as Ctrl-C does.
    Interrupt,
    /// Stand still until killed.
    Stop,
}
