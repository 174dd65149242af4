//! Files that their owner alone can read: keys.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use zeroize::Zeroizing;

use crate::os;

/// Writes a new file.
///
/// # Errors
/// If it exists (keys are never overwritten) or cannot be written; the cause in words.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    os::private_file()
        .and_then(|mut options| options.write(true).create_new(true).open(path))
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|cause| format!("cannot be written: {cause}"))
}

/// Reads one.
///
/// # Errors
/// If it is not there, no text, or readable by others; the cause in words.
pub fn read(path: &Path) -> Result<Zeroizing<String>, String> {
    let open = fs::metadata(path).and_then(|about| os::open_to_others(&about));
    if let Some(mode) = open.map_err(|cause| format!("cannot be read: {cause}"))? {
        return Err(format!("can be read by others (mode {mode:o}), who could be this role; chmod 600 it"));
    }
    fs::read_to_string(path).map(Zeroizing::new).map_err(|cause| format!("cannot be read: {cause}"))
}

/// Secret bytes that a file holds in hexadecimal of any length; `None` if it is not that.
pub fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return None;
    }
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}
