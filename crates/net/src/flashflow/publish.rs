//! Replaces files atomically.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use tidegate_control::flashflow::bandwidth_file::iso;

/// Replaces a file so that readers, also after a crash, see either the old or the new one.
///
/// # Errors
/// If the directory cannot be written.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
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

/// Publishes a dated bandwidth file (`path-2026-11-22-10-00-00`) and points the link `path` to it.
///
/// Keeps the last `kept` dated files.
///
/// # Errors
/// If the directory cannot be written.
pub(crate) fn publish(path: &Path, text: &str, unix: u64, kept: usize) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
    let date = iso(unix).replace(['T', ':'], "-");
    let dated = path.with_file_name(format!("{name}-{date}"));
    replace(&dated, text)?;
    #[cfg(unix)]
    {
        let link = path.with_file_name(format!(".{name}.link"));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(dated.file_name().expect("it was made of a name"), &link)?;
        fs::rename(&link, path)?;
    }
    // Creating links needs a privilege on other systems.
    #[cfg(not(unix))]
    replace(path, text)?;
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let mut old: Vec<_> = fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // Compare the length too: the name of another file may begin the same way.
    let ours = |path: &std::path::PathBuf| {
        let other = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        other.len() == name.len() + 1 + date.len() && other.starts_with(&format!("{name}-"))
    };
    old.retain(ours);
    old.sort();
    let excess = old.len().saturating_sub(kept);
    old[..excess].iter().try_for_each(fs::remove_file)
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
        for (text, unix) in [("three", 1_795_386_400), ("four", 1_795_386_460), ("five", 1_795_386_520)] {
            publish(&path, text, unix, 2).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let dated = fs::read_link(&path).unwrap();
        assert_eq!(dated.to_string_lossy().len(), "v3bw-2026-11-22-22-28-40".len());
        assert_eq!(fs::read_to_string(directory.join(dated)).unwrap(), "five");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "the link and the last two");
        fs::remove_dir_all(&directory).unwrap();
    }
}
