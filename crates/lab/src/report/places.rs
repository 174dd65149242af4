//! What file systems do beyond the standard library. A browser has none, and keeps no folders.

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

    /// Puts a folder into its place in one step; what was there is then where the new one was.
    pub(crate) fn exchange(fresh: &Path, place: &Path) -> io::Result<()> {
        let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        Ok(renameat_with(CWD, fresh, CWD, place, flags)?)
    }

    /// Makes a link to a name beside it.
    pub(crate) fn link_to(name: &Path, link: &Path) -> io::Result<()> {
        symlink(name, link)
    }

    /// Whether two names are of one file.
    pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    }

    /// Makes the names in a folder survive a power cut.
    pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// The same as far as the standard library goes. It has not been run but for its test.
#[cfg(any(test, not(unix)))]
#[cfg_attr(unix, expect(dead_code, reason = "here only the test uses it"))]
mod elsewhere {
    use std::fs::{Metadata, rename};
    use std::io;
    use std::path::Path;

    /// Puts a folder into its place; what was there is then where the new one was. A process that dies between the steps
    /// leaves it beside its place.
    pub(crate) fn exchange(fresh: &Path, place: &Path) -> io::Result<()> {
        if !place.exists() {
            return rename(fresh, place);
        }
        let aside = fresh.with_extension("old");
        rename(place, &aside)?;
        rename(fresh, place)?;
        rename(&aside, fresh)
    }

    /// Links need rights that users do not have.
    pub(crate) fn link_to(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether two files of one name have one content: files have no numbers to tell them by.
    pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
        one.len() == other.len()
            && one.modified().is_ok_and(|time| other.modified().is_ok_and(|it| it == time))
    }

    /// Folders cannot be opened.
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
