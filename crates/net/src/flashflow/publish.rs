//! Files that others read, replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file so that a reader, or a crash, sees the old or the new one and nothing between.
///
/// # Errors
/// If the directory cannot be written.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = directory.join(format!(".{}.new", name.to_string_lossy()));
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{hex, random};

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = std::env::temp_dir().join(format!("tidegate-publish-{}", hex(&random::<8>())));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("v3bw");
        replace(&path, "one").unwrap();
        replace(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(replace(&directory.join("missing/v3bw"), "x").is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
