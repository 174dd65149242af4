//! How many sockets this process may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to what the system allows (RLIMIT_NOFILE's hard limit; shells begin with
/// 1024); gives the limit that holds now.
///
/// # Errors
/// If the system refuses.
pub fn raise() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}
