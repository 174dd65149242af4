//! The coordinator's state on disk: records as lines of JSON, appended and synced, in one file per day.
//! A crash can cut the last line short; it is dropped when the state is opened again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tidegate_control::units::Span;

use super::ledger::{Ledger, Record};

const DAY: u64 = 86_400;
const PREFIX: &str = "records-";
const SUFFIX: &str = ".jsonl";

/// An open state directory, held by this process alone.
pub struct Store {
    directory: PathBuf,
    day: u64,
    file: File,
    _lock: File,
}

/// Why the state cannot be used.
#[derive(Debug)]
pub struct StoreError {
    path: PathBuf,
    line: usize,
    why: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}", self.path.display())?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for StoreError {}

fn error(path: &Path, line: usize, why: impl fmt::Display) -> StoreError {
    StoreError { path: path.into(), line, why: why.to_string() }
}

/// All records of a state directory, oldest first, without changing anything. The last line of the newest
/// file may be incomplete.
///
/// # Errors
/// If a file cannot be read, or any other line is not a record.
pub fn read(directory: &Path) -> Result<Vec<Record>, StoreError> {
    let mut records = Vec::new();
    let files = segments(directory)?;
    for (n, (_, path)) in files.iter().enumerate() {
        let bytes = fs::read(path).map_err(|cause| error(path, 0, cause))?;
        let newest = n + 1 == files.len();
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None => 0,
        };
        if !newest && whole < bytes.len() {
            return Err(error(path, 0, "ends in the middle of a record, and is not the newest file"));
        }
        for (i, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate() {
            if !line.is_empty() {
                records.push(serde_json::from_slice(line).map_err(|cause| error(path, i + 1, cause))?);
            }
        }
    }
    Ok(records)
}

/// The files of a state directory with the days they hold.
fn segments(directory: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let entries = fs::read_dir(directory).map_err(|cause| error(directory, 0, cause))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|cause| error(directory, 0, cause))?.path();
        let day = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
        found.extend(day.map(|day| (day, path)));
    }
    found.sort_unstable();
    Ok(found)
}

impl Store {
    /// Opens or creates a state directory and folds what is in it.
    ///
    /// # Errors
    /// If another process has it open, a record is damaged, or the records contradict each other.
    pub fn open(directory: &Path, unix: u64) -> Result<(Store, Vec<Record>), StoreError> {
        fs::create_dir_all(directory).map_err(|cause| error(directory, 0, cause))?;
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|cause| error(&lock_path, 0, cause))?;
        lock.try_lock().map_err(|_| error(&lock_path, 0, "another coordinator is using this state"))?;
        if let Some((_, newest)) = segments(directory)?.last() {
            drop_torn_line(newest).map_err(|cause| error(newest, 0, cause))?;
        }
        let records = read(directory)?;
        let mut ledger = Ledger::default();
        for (i, record) in records.iter().enumerate() {
            ledger.apply(record).map_err(|cause| error(directory, i + 1, cause))?;
        }
        // A clock that was set back must not put new records into an old file.
        let day = segments(directory)?.last().map_or(unix / DAY, |(day, _)| (*day).max(unix / DAY));
        let file = append(directory, day).map_err(|cause| error(directory, 0, cause))?;
        Ok((Store { directory: directory.into(), day, file, _lock: lock }, records))
    }

    /// Appends a record; it is on disk when this returns.
    ///
    /// # Errors
    /// If the disk does not take it: the coordinator must not go on.
    pub fn append(&mut self, record: &Record, unix: u64) -> io::Result<()> {
        if unix / DAY > self.day {
            self.day = unix / DAY;
            self.file = append(&self.directory, self.day)?;
        }
        let mut line = serde_json::to_vec(record).map_err(io::Error::other)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()
    }

    /// Deletes files of days that ended longer than `retention` ago; how many.
    ///
    /// # Errors
    /// If the directory cannot be read or a file not be deleted.
    pub fn forget(&self, unix: u64, retention: Span) -> Result<usize, StoreError> {
        let oldest = unix.saturating_sub(retention.0 / 1_000_000_000) / DAY;
        let old: Vec<_> = segments(&self.directory)?.into_iter().filter(|(day, _)| *day < oldest).collect();
        for (_, path) in &old {
            fs::remove_file(path).map_err(|cause| error(path, 0, cause))?;
        }
        Ok(old.len())
    }
}

fn append(directory: &Path, day: u64) -> io::Result<File> {
    let path = directory.join(format!("{PREFIX}{day}{SUFFIX}"));
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    File::open(directory)?.sync_all()?;
    Ok(file)
}

fn drop_torn_line(path: &Path) -> io::Result<()> {
    let bytes = fs::read(path)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if whole < bytes.len() {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(whole as u64)?;
        file.sync_all()?;
    }
    Ok(())
}

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

    fn started(unix: u64) -> Record {
        Record::Started { unix, version: "1".into(), fresh: false }
    }

    fn scratch() -> PathBuf {
        std::env::temp_dir().join(format!("tidegate-store-{}", hex(&random::<8>())))
    }

    #[test]
    fn a_state_cut_at_any_byte_keeps_every_whole_record() {
        let directory = scratch();
        let (mut store, records) = Store::open(&directory, 5).unwrap();
        assert_eq!(records, []);
        for n in 1..=3 {
            store.append(&started(n), n).unwrap();
        }
        drop(store);
        let path = directory.join("records-0.jsonl");
        let whole = fs::read(&path).unwrap();
        let line = whole.len() / 3;
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut store, records) = Store::open(&directory, 5).unwrap();
            assert_eq!(records.len(), cut / line, "cut at {cut}");
            store.append(&started(9), 9).unwrap();
            drop(store);
            assert_eq!(read(&directory).unwrap().len(), cut / line + 1);
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn damage_a_second_process_and_age_are_dealt_with() {
        let directory = scratch();
        let (mut store, _) = Store::open(&directory, 5).unwrap();
        assert!(Store::open(&directory, 5).err().unwrap().to_string().contains("another coordinator"));
        store.append(&started(1), 1).unwrap();
        store.append(&started(DAY * 40), DAY * 40).unwrap();
        assert_eq!(store.forget(DAY * 50, Span::from_secs(DAY * 60)).unwrap(), 0);
        assert_eq!(store.forget(DAY * 50, Span::from_secs(DAY * 30)).unwrap(), 1);
        drop(store);
        assert_eq!(read(&directory).unwrap(), [started(DAY * 40)]);
        fs::write(directory.join("records-40.jsonl"), "{\"record\":\"started\"}\n").unwrap();
        let error = Store::open(&directory, 5).err().unwrap().to_string();
        assert!(error.contains("line 1") && error.contains("missing field"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = scratch();
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
