//! Files that only their owner can read: keys.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::os;

/// Writes a new file.
///
/// # Errors
/// If it exists (keys are never overwritten) or cannot be written. A file that cannot be written to its end is removed.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let write = || {
        let mut file = os::private_file()?.write(true).create_new(true).open(path)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
            // The rest of it would block the next attempt.
            let _ = fs::remove_file(path);
        })
    };
    write().map_err(|cause| format!("cannot be written: {cause}"))
}

/// The temporary file that [`replace`] writes before it renames it.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or(OsString::new(), OsString::from);
    name.push(".new");
    path.with_file_name(name)
}

/// Replaces the contents of an existing file atomically and durably.
///
/// # Errors
/// If it cannot be written. The file then keeps its contents.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), String> {
    let write = || {
        // Follow a symbolic link, so that it stays one.
        let path = fs::canonicalize(path)?;
        let new = beside(&path);
        // Remove the leftover of an interrupted attempt.
        match fs::remove_file(&new) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let mut file = os::private_file()?.write(true).create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(|cause: io::Error| format!("cannot be replaced: {cause}"))
}

/// Reads a private file.
///
/// # Errors
/// If it is missing, is not UTF-8, or is readable by others.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<String>, String> {
    check_mode(path)?;
    fs::read_to_string(path).map(Zeroizing::new).map_err(|cause| format!("cannot be read: {cause}"))
}

/// Reads a private file of bytes.
///
/// # Errors
/// If it is missing, or is readable by others.
pub fn read_bytes(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    check_mode(path)?;
    fs::read(path).map(Zeroizing::new).map_err(|cause| format!("cannot be read: {cause}"))
}

/// The mode of a file that others than its owner can open; `None` for a private file, and for one that cannot be read.
pub fn open_mode(path: &Path) -> Option<u32> {
    fs::metadata(path).and_then(|about| os::open_to_others(&about)).ok().flatten()
}

fn check_mode(path: &Path) -> Result<(), String> {
    let fail = |cause: io::Error| format!("cannot be read: {cause}");
    let about = fs::metadata(path).map_err(fail)?;
    // Reading a pipe would wait for a writer.
    if !about.is_file() {
        return Err("is not a regular file; name a file that holds keys".into());
    }
    match os::open_to_others(&about).map_err(fail)? {
        Some(mode) => {
            Err(format!("can be read by others (mode {mode:o}) and holds keys; run chmod 600 on it"))
        }
        None => Ok(()),
    }
}

/// Decodes hexadecimal of any length; `None` if the text is not hexadecimal.
pub(crate) fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return None;
    }
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}
