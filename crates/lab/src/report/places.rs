//! What file systems do beyond the standard library. A browser has none, and keeps no folders.

use std::fs::Metadata;
use std::io;
use std::path::Path;

/// Puts a folder into its place in one step; what was there is then where the new one was.
#[cfg(unix)]
pub(crate) fn exchange(fresh: &Path, place: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
    Ok(renameat_with(CWD, fresh, CWD, place, flags)?)
}

/// Makes a link to a name beside it.
#[cfg(unix)]
pub(super) fn link_to(name: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(name, link)
}

/// Whether two names are of one file.
#[cfg(unix)]
pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
pub(crate) fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(super) fn link_to(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(super) fn is_same(_: &Metadata, _: &Metadata) -> bool {
    false
}
