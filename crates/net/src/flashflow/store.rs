//! The coordinator's state on disk: an SQLite database of records in order.
//!
//! A record is durable (WAL, synchronous FULL) before the coordinator acts on it, and is written entirely or
//! not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction};
use tidegate_control::units::Span;

use super::ledger::Ledger;
use super::record::Record;

const DATABASE: &str = "ledger.sqlite";
/// Format of the database, in SQLite's `user_version`.
const FORMAT: i64 = 1;
/// How long a reader waits for a writer.
const BUSY: Duration = Duration::from_secs(5);

/// A second gets the `unix` of the record before it, because records are deleted from the oldest on.
const SCHEMA: &str = "
    CREATE TABLE records (seq INTEGER PRIMARY KEY, unix INTEGER NOT NULL, record TEXT NOT NULL) STRICT;";

/// An open state directory, locked by this process.
pub struct Store {
    connection: Connection,
    _lock: File,
}

/// Reason why the state cannot be used.
#[derive(Debug)]
pub struct StoreError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for StoreError {}

fn error(path: &Path, why: impl fmt::Display) -> StoreError {
    StoreError { path: path.into(), why: why.to_string() }
}

/// Reads all records of a state directory, oldest first, without writing.
///
/// # Errors
/// If the directory or a record cannot be read.
pub fn read(directory: &Path) -> Result<Vec<Record>, StoreError> {
    let path = directory.join(DATABASE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    connection
        .and_then(|connection| {
            connection.busy_timeout(BUSY)?;
            records(&connection)
        })
        .map_err(|cause| error(&path, cause))?
        .into_iter()
        .map(|(seq, text)| parse(&path, seq, &text))
        .collect()
}

/// Writes all records as lines of JSON.
///
/// # Errors
/// If they cannot be read or written.
pub fn export(directory: &Path, mut to: impl Write) -> Result<(), StoreError> {
    for record in read(directory)? {
        let line = serde_json::to_string(&record).expect("records are JSON");
        writeln!(to, "{line}").map_err(|cause| error(directory, cause))?;
    }
    to.flush().map_err(|cause| error(directory, cause))
}

fn records(connection: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let mut query = connection.prepare("SELECT seq, record FROM records ORDER BY seq")?;
    query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn parse(path: &Path, seq: i64, text: &str) -> Result<Record, StoreError> {
    serde_json::from_str(text).map_err(|cause| error(path, format!("record {seq}: {cause}")))
}

impl Store {
    /// Opens or creates a state directory and checks its records.
    ///
    /// # Errors
    /// If another process has it open, a record is damaged, or the records contradict each other.
    pub fn open(directory: &Path) -> Result<(Store, Vec<Record>), StoreError> {
        fs::create_dir_all(directory).map_err(|cause| error(directory, cause))?;
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|cause| error(&lock_path, cause))?;
        lock.try_lock().map_err(|_| error(&lock_path, "another coordinator is using this state"))?;
        let path = directory.join(DATABASE);
        let connection = database(&path).map_err(|cause| error(&path, cause))?;
        let read = records(&connection).map_err(|cause| error(&path, cause))?;
        let (mut ledger, mut all) = (Ledger::default(), Vec::new());
        for (seq, text) in read {
            let record = parse(&path, seq, &text)?;
            ledger.apply(&record).map_err(|cause| error(&path, format!("record {seq}: {cause}")))?;
            all.push(record);
        }
        Ok((Store { connection, _lock: lock }, all))
    }

    /// Appends a record; it is durable when this returns.
    ///
    /// # Errors
    /// If the disk fails. Nothing is written then, and the coordinator must stop measuring.
    pub fn append(&mut self, record: &Record) -> std::io::Result<()> {
        let transaction = self.connection.transaction().map_err(std::io::Error::other)?;
        insert(&transaction, record).and_then(|()| transaction.commit()).map_err(std::io::Error::other)
    }

    /// Deletes the records from before `unix - retention` and returns their number.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn forget(&self, unix: u64, retention: Span) -> Result<usize, StoreError> {
        let oldest = unix.saturating_sub(retention.0 / 1_000_000_000);
        let delete = "DELETE FROM records WHERE seq < (SELECT min(seq) FROM records WHERE unix >= ?1)";
        let deleted = self.connection.execute(delete, [signed(oldest)]);
        deleted.map_err(|cause| error(Path::new(self.connection.path().unwrap_or(DATABASE)), cause))
    }
}

fn database(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    match connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? {
        // One transaction: a crash in between would leave tables that cannot be created again.
        0 => connection.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT"))?,
        FORMAT => {}
        other => {
            let why = format!("is of format {other}, this version knows {FORMAT}");
            return Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(26), Some(why)));
        }
    }
    Ok(connection)
}

fn insert(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    let text = serde_json::to_string(record).expect("records are JSON");
    let last = "(SELECT coalesce(max(seq), 0) FROM records)";
    let before = format!("(SELECT coalesce(max(unix), 0) FROM records WHERE seq = {last})");
    let insert = format!("INSERT INTO records VALUES ({last} + 1, coalesce(?1, {before}), ?2)");
    transaction.prepare_cached(&insert)?.execute((record.unix().map(signed), text)).map(drop)
}

/// SQLite's integers are signed; no calendar time reaches half of `u64`.
fn signed(unix: u64) -> i64 {
    i64::try_from(unix).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{hex, random};

    fn started(unix: u64) -> Record {
        Record::Started { unix, version: "1".into(), fresh: false }
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = std::env::temp_dir().join(format!("tidegate-store-{}", hex(&random::<8>())));
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn times(records: &[Record]) -> Vec<u64> {
        records.iter().filter_map(Record::unix).collect()
    }

    /// A log that is cut at any byte, as by power failure or SIGKILL.
    #[test]
    fn a_log_cut_at_any_byte_keeps_every_whole_record() {
        let (whole, cut) = (Scratch::new(), Scratch::new());
        let (mut store, _) = Store::open(&whole.0).unwrap();
        let log = whole.0.join("ledger.sqlite-wal");
        let mut ends = Vec::new();
        for n in 1..=3 {
            store.append(&started(n)).unwrap();
            ends.push(fs::metadata(&log).unwrap().len());
        }
        let bytes = fs::read(&log).unwrap();
        let every = if std::env::var_os("TIDEGATE_SLOW_TESTS").is_some() { 1 } else { 131 };
        for length in (ends[0]..=ends[2]).step_by(every).chain(ends.iter().copied()) {
            for name in ["ledger.sqlite-shm", "ledger.sqlite-wal", "ledger.sqlite"] {
                let _ = fs::remove_file(cut.0.join(name));
            }
            fs::copy(whole.0.join(DATABASE), cut.0.join(DATABASE)).unwrap();
            fs::write(cut.0.join("ledger.sqlite-wal"), &bytes[..length as usize]).unwrap();
            let (mut store, records) = Store::open(&cut.0).unwrap();
            let complete = ends.iter().filter(|end| **end <= length).count() as u64;
            assert_eq!(times(&records), (1..=complete).collect::<Vec<_>>(), "cut at {length}");
            // The store can be appended to afterwards.
            store.append(&started(9)).unwrap();
            assert_eq!(times(&read(&cut.0).unwrap()).last(), Some(&9));
        }
    }

    #[test]
    fn writing_resumes_after_a_full_disk() {
        let scratch = Scratch::new();
        let (mut store, _) = Store::open(&scratch.0).unwrap();
        store.append(&started(1)).unwrap();
        let pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        store.connection.pragma_update(None, "max_page_count", pages).unwrap();
        let long = Record::Started { unix: 2, version: "x".repeat(100_000), fresh: false };
        assert!(store.append(&long).unwrap_err().to_string().contains("full"));
        store.connection.pragma_update(None, "max_page_count", 1_000_000).unwrap();
        store.append(&started(3)).unwrap();
        drop(store);
        assert_eq!(times(&Store::open(&scratch.0).unwrap().1), [1, 3]);
    }

    #[test]
    fn a_second_process_age_and_damage_are_dealt_with() {
        let scratch = Scratch::new();
        let (mut store, _) = Store::open(&scratch.0).unwrap();
        assert!(Store::open(&scratch.0).err().unwrap().to_string().contains("another coordinator"));
        const DAY: u64 = 86_400;
        let second = Record::Second { id: "a".into(), second: 1, measurers: vec![], sent: 0, received: 0 };
        for record in [started(1), second, started(DAY * 40)] {
            store.append(&record).unwrap();
        }
        assert_eq!(store.forget(DAY * 50, Span::from_secs(DAY * 60)).unwrap(), 0);
        assert_eq!(
            store.forget(DAY * 50, Span::from_secs(DAY * 30)).unwrap(),
            2,
            "a second with what it is of"
        );
        assert_eq!(store.forget(DAY * 400, Span::from_secs(DAY)).unwrap(), 0, "the last ones stay");
        assert_eq!(times(&read(&scratch.0).unwrap()), [DAY * 40], "while the store is open");
        store.connection.execute("UPDATE records SET record = '{}'", []).unwrap();
        drop(store);
        let error = Store::open(&scratch.0).err().unwrap().to_string();
        assert!(error.contains("record 3") && error.contains("missing field"), "{error}");
        fs::write(scratch.0.join(DATABASE), "something else").unwrap();
        assert!(Store::open(&scratch.0).err().unwrap().to_string().contains("not a database"));
    }

    #[test]
    fn an_export_is_one_record_a_line() {
        let scratch = Scratch::new();
        let (mut store, _) = Store::open(&scratch.0).unwrap();
        store.append(&started(1)).unwrap();
        store.append(&started(3)).unwrap();
        let mut lines = Vec::new();
        export(&scratch.0, &mut lines).unwrap();
        let line = |unix| serde_json::to_string(&started(unix)).unwrap() + "\n";
        assert_eq!(String::from_utf8(lines).unwrap(), line(1) + &line(3));
    }
}
