//! Files that appear whole or not at all: they are written beside their places and renamed.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Replaces a file: readers see either the old or the new bytes, and a full disk leaves nothing behind.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays a link. A device or a pipe cannot be renamed to.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return fs::write(path, bytes);
    }
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let fresh = path.with_file_name(format!(".{name}.{}", std::process::id()));
    synced(&fresh, bytes).and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// Writes a file that does not exist yet.
///
/// # Errors
/// If it exists or cannot be written.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).inspect_err(|_| {
        // Only a part of it is there, and it would stop the next try.
        let _ = fs::remove_file(path);
    })
}

/// Writes and syncs a file.
pub(crate) fn synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Files of a folder until all are written. Dropping it removes those that are not published.
pub struct Staged {
    place: PathBuf,
    fresh: PathBuf,
    /// Whether the folder was made for these files.
    made: bool,
}

impl Staged {
    /// Prepares to write files into this folder, which is made if it is missing.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn new(place: &Path) -> io::Result<Staged> {
        let made = !place.exists();
        fs::create_dir_all(place)?;
        // On the same file system, so that files can be renamed.
        let fresh = place.join(format!(".tidegate-{}", std::process::id()));
        let staged = Staged { place: place.to_owned(), fresh, made };
        fs::create_dir_all(&staged.fresh)?;
        Ok(staged)
    }

    /// Makes a folder in it and returns its path until the files are published.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn folder(&self, name: impl AsRef<Path>) -> io::Result<PathBuf> {
        let folder = self.fresh.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Writes a file; the name may include folders.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let path = self.fresh.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        synced(&path, bytes)
    }

    /// Moves all files to their places and replaces files of the same names.
    ///
    /// # Errors
    /// If a name is taken by something else.
    pub fn publish(self) -> io::Result<()> {
        self.publish_last("")
    }

    /// The same, with one file after all others.
    pub(super) fn publish_last(mut self, last: &str) -> io::Result<()> {
        move_into(&self.fresh, &self.place, last)?;
        if !last.is_empty() {
            fs::rename(self.fresh.join(last), self.place.join(last))?;
        }
        self.made = false;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.fresh);
        if self.made {
            // Refused, as it should be, if someone else has put something there.
            let _ = fs::remove_dir(&self.place);
        }
    }
}

/// Moves everything but the file `except` to another folder.
fn move_into(from: &Path, to: &Path, except: &str) -> io::Result<()> {
    let others =
        |entry: &io::Result<fs::DirEntry>| !entry.as_ref().is_ok_and(|entry| entry.file_name() == except);
    fs::read_dir(from)?.filter(others).try_for_each(|entry| {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&there)?;
            return move_into(&entry.path(), &there, "");
        }
        fs::rename(entry.path(), there)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("tidegate-staged-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        root
    }

    #[test]
    fn files_that_cannot_all_be_written_leave_nothing() {
        let root = scratch("folder");
        let place = root.join("out");
        let put = |last: &str| -> io::Result<()> {
            let staged = Staged::new(&place)?;
            staged.write("a/b", b"1")?;
            staged.write(last, b"2")?;
            staged.publish()
        };
        put(&"x".repeat(300)).unwrap_err();
        assert!(!place.exists(), "a folder that was made for them goes too");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("note"), "mine").unwrap();
        put(&"x".repeat(300)).unwrap_err();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "a folder that was there stays");
        put("c").unwrap();
        assert_eq!(fs::read(place.join("a/b")).unwrap(), b"1");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 3, "a, c and the note");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_file_is_replaced_and_a_link_to_it_stays() {
        let root = scratch("file");
        let (file, link) = (root.join("file"), root.join("link"));
        fs::write(&file, "old").unwrap();
        super::super::places::link_to(Path::new("file"), &link).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        replace(&root.join("x".repeat(300)), b"new").unwrap_err();
        replace(&root, b"new").unwrap_err();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2, "nothing is left beside");
        fs::remove_dir_all(&root).unwrap();
    }
}
