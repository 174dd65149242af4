//! File system operations beyond the standard library, with a fallback for systems other than Unix.

#[cfg(not(unix))]
pub(crate) use elsewhere::*;
#[cfg(unix)]
pub(crate) use unix::*;

#[cfg(unix)]
mod unix {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    /// Exchanges two folders in one atomic step; moves `fresh` if `place` does not exist.
    pub(crate) fn exchange(fresh: &Path, place: &Path) -> io::Result<()> {
        let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        Ok(renameat_with(CWD, fresh, CWD, place, flags)?)
    }

    /// Creates a symbolic link to a name in the same folder.
    pub(crate) fn link_to(name: &Path, link: &Path) -> io::Result<()> {
        symlink(name, link)
    }

    /// Whether two names refer to the same file.
    pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    }

    /// Makes the names in a folder survive a power failure.
    pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// The same operations with the standard library alone. Only its test has ever run it.
#[cfg(any(test, not(unix)))]
#[cfg_attr(unix, expect(dead_code, reason = "on Unix only the test uses it"))]
mod elsewhere {
    use std::fs::{Metadata, rename};
    use std::io;
    use std::path::Path;

    /// Exchanges two folders in three steps. A process that dies between them leaves the old folder beside its place.
    pub(crate) fn exchange(fresh: &Path, place: &Path) -> io::Result<()> {
        if !place.exists() {
            return rename(fresh, place);
        }
        let aside = fresh.with_extension("old");
        rename(place, &aside)?;
        rename(fresh, place)?;
        rename(&aside, fresh)
    }

    /// Not supported: creating links needs rights that ordinary users lack.
    pub(crate) fn link_to(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Compares length and time of modification, because inode numbers are not available here.
    pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
        one.len() == other.len()
            && one.modified().is_ok_and(|time| other.modified().is_ok_and(|it| it == time))
    }

    /// Does nothing: folders cannot be opened here.
    pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_change_places_in_one_step_or_in_three() {
        let root = std::env::temp_dir().join(format!("tidegate-places-{}", std::process::id()));
        for exchange in [exchange, elsewhere::exchange] {
            let (fresh, place) = (root.join("fresh"), root.join("place"));
            for (folder, file) in [(&fresh, "new"), (&place, "old")] {
                fs::create_dir_all(folder).unwrap();
                fs::write(folder.join(file), "").unwrap();
            }
            exchange(&fresh, &place).unwrap();
            assert!(place.join("new").exists() && fresh.join("old").exists());
            assert_eq!(fs::read_dir(&root).unwrap().count(), 2, "nothing is left beside");
            fs::remove_dir_all(&fresh).unwrap();
            exchange(&place, &fresh).unwrap();
            assert!(fresh.join("new").exists() && !place.exists(), "where nothing was");
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
