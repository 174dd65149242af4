//! The coordinator's state on disk: an SQLite database of records in order.
//!
//! A record is durable (WAL, synchronous FULL) before the coordinator acts on it, and is written entirely or
//! not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Span;

use super::ledger::Ledger;
use super::record::Record;

const DATABASE: &str = "ledger.sqlite";
/// File with the number of the last record. A database that ends earlier has lost records: SQLite takes a damaged log for
/// one that ends there. After a power failure the file may be older, which hides that once.
const LAST: &str = "last";
/// Format of the database, in SQLite's `user_version`.
const FORMAT: i64 = 2;
/// How long a reader waits for a writer.
const BUSY: Duration = Duration::from_secs(5);

/// A second gets the `unix` of the record before it, because records are deleted from the oldest on. The digest of a
/// record covers the one before it, so that a changed bit, a missing or an exchanged record is found (SQLite lacks
/// checksums).
const SCHEMA: &str = "
    CREATE TABLE records (seq INTEGER PRIMARY KEY, unix INTEGER NOT NULL, record TEXT NOT NULL, digest BLOB NOT NULL) STRICT;";

/// An open state directory, locked by this process.
pub struct Store {
    connection: Connection,
    /// See [`LAST`].
    last: PathBuf,
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
    // Before the records, which a running coordinator appends to.
    let last = last(directory)?;
    if !path.exists() {
        return records(&path, Vec::new(), last);
    }
    let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let rows = connection.and_then(|connection| {
        connection.busy_timeout(BUSY)?;
        rows(&connection)
    });
    records(&path, rows.map_err(|cause| unreadable(&path, &cause))?, last)
}

/// The error of a database that cannot be read.
fn unreadable(path: &Path, cause: &rusqlite::Error) -> StoreError {
    let why = match cause {
        rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..) => {
            "a record is damaged: the file was cut or changed; restore a copy of it".to_owned()
        }
        _ => cause.to_string(),
    };
    error(path, why)
}

/// The number of the last record that was stored; 0 if it is unknown: before the first record, or after a power failure that left
/// an empty file.
fn last(directory: &Path) -> Result<i64, StoreError> {
    let path = directory.join(LAST);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(0),
        Err(cause) => return Err(error(&path, cause)),
    };
    match text.trim_end() {
        "" => Ok(0),
        number => number.parse().map_err(|_| {
            error(
                &path,
                "is not the number of a record: the file was damaged or changed; delete it to go on without",
            )
        }),
    }
}

/// A stored record, and its digest.
struct Row {
    seq: i64,
    unix: i64,
    text: String,
    digest: Vec<u8>,
}

fn rows(connection: &Connection) -> rusqlite::Result<Vec<Row>> {
    match format(connection)? {
        FORMAT => {}
        other => return Err(unknown_format(other)),
    }
    let mut query = connection.prepare("SELECT seq, unix, record, digest FROM records ORDER BY seq")?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Row { seq: row.get(0)?, unix: row.get(1)?, text: row.get(2)?, digest: row.get(3)? })
    };
    query.query_map([], read)?.collect()
}

/// Digest of a record that follows one with digest `before`.
fn digest(before: &[u8], seq: i64, unix: i64, text: &str) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update((before.len() as u64).to_be_bytes());
    hash.update(before);
    hash.update(seq.to_be_bytes());
    hash.update(unix.to_be_bytes());
    hash.update(text);
    hash.finalize()[..16].to_vec()
}

/// Parses the records, and checks that each follows the one before it and that number `last` is there.
fn records(path: &Path, rows: Vec<Row>, last: i64) -> Result<Vec<Record>, StoreError> {
    let ends = rows.last().map_or(0, |row| row.seq);
    if ends < last {
        let cure = format!("restore a copy that has it, or delete the file `{LAST}` to go on without");
        return Err(error(path, format!("record {last} is missing, the last one is {ends}: {cure}")));
    }
    let damaged = |seq: i64, why: &str| {
        error(path, format!("record {seq} {why}: the file was damaged or changed; restore a copy of it"))
    };
    let mut before: Option<(i64, Vec<u8>)> = None;
    let mut all = Vec::new();
    for Row { seq, unix, text, digest: stored } in rows {
        if before.as_ref().is_some_and(|(last, _)| seq != last + 1) {
            return Err(damaged(seq, "does not follow the one before it"));
        }
        // The record before the first one was deleted because of its age; `forget` replaced the first one's digest.
        let known = before.as_ref().map(|(_, digest)| &digest[..]).unwrap_or_default();
        if stored != digest(known, seq, unix, &text) {
            return Err(damaged(seq, "has another digest"));
        }
        all.push(parse(path, seq, &text)?);
        before = Some((seq, stored));
    }
    Ok(all)
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
        let rows = rows(&connection).map_err(|cause| unreadable(&path, &cause))?;
        let first = rows.first().map_or(1, |row| row.seq);
        let (mut ledger, all) = (Ledger::default(), records(&path, rows, last(directory)?)?);
        for (seq, record) in (first..).zip(&all) {
            ledger.apply(record).map_err(|cause| error(&path, format!("record {seq}: {cause}")))?;
        }
        Ok((Store { connection, last: directory.join(LAST), _lock: lock }, all))
    }

    /// Appends a record; it is durable when this returns.
    ///
    /// # Errors
    /// If the disk fails. Nothing is written then, and the coordinator must stop measuring.
    pub fn append(&mut self, record: &Record) -> std::io::Result<()> {
        let path = PathBuf::from(self.connection.path().unwrap_or(DATABASE));
        let transaction = self.connection.transaction();
        let stored = transaction.and_then(|transaction| {
            let seq = insert(&transaction, record)?;
            transaction.commit().map(|()| seq)
        });
        let seq = stored.map_err(|cause| std::io::Error::other(error(&path, cause)))?;
        // The record is stored. Without the number, only a later loss of it is not noticed.
        let _ = fs::write(&self.last, format!("{seq}\n"));
        Ok(())
    }

    /// Deletes the records from before `unix - retention` and returns their number.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn forget(&mut self, unix: u64, retention: Span) -> Result<usize, StoreError> {
        let oldest = signed(unix.saturating_sub(retention.0 / 1_000_000_000));
        let path = PathBuf::from(self.connection.path().unwrap_or(DATABASE));
        self.forget_before(oldest).map_err(|cause| error(&path, cause))
    }

    fn forget_before(&mut self, oldest: i64) -> rusqlite::Result<usize> {
        let transaction = self.connection.transaction()?;
        let delete = "DELETE FROM records WHERE seq < (SELECT min(seq) FROM records WHERE unix >= ?1)";
        let deleted = transaction.execute(delete, [oldest])?;
        if deleted > 0 {
            // The digests of the rest covered what is gone.
            let mut before = Vec::new();
            for row in rows(&transaction)? {
                before = digest(&before, row.seq, row.unix, &row.text);
                let update = "UPDATE records SET digest = ?1 WHERE seq = ?2";
                transaction.prepare_cached(update)?.execute((&before, row.seq))?;
            }
        }
        transaction.commit()?;
        Ok(deleted)
    }
}

fn unknown_format(format: i64) -> rusqlite::Error {
    let why = format!("is of format {format}, this version knows {FORMAT}");
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(26), Some(why))
}

/// The format of a database; 0 if it is new.
fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn database(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    match format(&connection)? {
        // One transaction: a crash in between would leave tables that cannot be created again.
        0 => connection.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT"))?,
        FORMAT => {}
        other => return Err(unknown_format(other)),
    }
    Ok(connection)
}

/// Inserts a record and returns its number.
fn insert(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<i64> {
    let text = serde_json::to_string(record).expect("records are JSON");
    let last = "SELECT seq, unix, digest FROM records ORDER BY seq DESC LIMIT 1";
    let last = transaction
        .prepare_cached(last)?
        .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Vec<u8>>(2)?)));
    let (seq, before_unix, before) = last.optional()?.unwrap_or_default();
    let (seq, unix) = (seq + 1, record.unix().map_or(before_unix, signed));
    let digest = digest(&before, seq, unix, &text);
    let insert = "INSERT INTO records (seq, unix, record, digest) VALUES (?1, ?2, ?3, ?4)";
    transaction.prepare_cached(insert)?.execute((seq, unix, text, digest))?;
    Ok(seq)
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
            for name in ["ledger.sqlite-shm", "ledger.sqlite-wal", "ledger.sqlite", LAST] {
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
        let why = store.append(&long).unwrap_err().to_string();
        assert!(why.contains("full") && why.contains(DATABASE), "{why}");
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
        assert!(error.contains("record 3 has another digest"), "{error}");
        fs::write(scratch.0.join(DATABASE), "something else").unwrap();
        assert!(Store::open(&scratch.0).err().unwrap().to_string().contains("not a database"));
    }

    /// A byte of the database changes, anywhere. Its records are found damaged, or they are as they were: the byte is not
    /// in use.
    #[test]
    fn a_changed_byte_is_found_or_changes_nothing() {
        let (whole, changed) = (Scratch::new(), Scratch::new());
        let (mut store, _) = Store::open(&whole.0).unwrap();
        let all: Vec<Record> = (1..=12).map(started).collect();
        all.iter().for_each(|record| store.append(record).unwrap());
        // Closing the last connection moves the log into the database.
        drop(store);
        fs::copy(whole.0.join(LAST), changed.0.join(LAST)).unwrap();
        let bytes = fs::read(whole.0.join(DATABASE)).unwrap();
        let in_text = |at: &usize| bytes[*at..].starts_with(b"\"unix\":");
        let times: Vec<usize> = (0..bytes.len()).filter(in_text).map(|at| at + 7).collect();
        assert!(times.len() >= all.len());
        let (mut found, mut unused) = (0, 0);
        let every = if std::env::var_os("TIDEGATE_SLOW_TESTS").is_some() { 1 } else { 37 };
        for at in (0..bytes.len()).step_by(every).chain(times) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            for name in ["ledger.sqlite-shm", "ledger.sqlite-wal"] {
                let _ = fs::remove_file(changed.0.join(name));
            }
            fs::write(changed.0.join(DATABASE), damaged).unwrap();
            match read(&changed.0) {
                Err(_) => found += 1,
                Ok(read) => {
                    assert_eq!(read, all, "byte {at}");
                    unused += 1;
                }
            }
        }
        assert!(found >= all.len() && unused > 0, "{found} found, {unused} not in use");
    }

    /// A byte of the log changes after the coordinator was killed. SQLite takes the log to end there.
    #[test]
    fn a_changed_byte_of_the_log_is_found() {
        let (whole, changed) = (Scratch::new(), Scratch::new());
        let (mut store, _) = Store::open(&whole.0).unwrap();
        let all: Vec<Record> = (1..=3).map(started).collect();
        all.iter().for_each(|record| store.append(record).unwrap());
        let log = fs::read(whole.0.join("ledger.sqlite-wal")).unwrap();
        for at in (0..log.len()).step_by(1_999).chain([log.len() - 1]) {
            let mut damaged = log.clone();
            damaged[at] ^= 1;
            let _ = fs::remove_file(changed.0.join("ledger.sqlite-shm"));
            fs::copy(whole.0.join(DATABASE), changed.0.join(DATABASE)).unwrap();
            fs::copy(whole.0.join(LAST), changed.0.join(LAST)).unwrap();
            fs::write(changed.0.join("ledger.sqlite-wal"), damaged).unwrap();
            match Store::open(&changed.0) {
                Err(_) => {}
                Ok((_, read)) => assert_eq!(read, all, "byte {at}"),
            }
        }
    }

    #[test]
    fn a_lost_database_and_a_damaged_number_are_found() {
        let scratch = Scratch::new();
        assert!(read(&scratch.0).unwrap().is_empty(), "before the first start");
        let (mut store, _) = Store::open(&scratch.0).unwrap();
        (1..=9).for_each(|unix| store.append(&started(unix)).unwrap());
        drop(store);
        let fails =
            || [read(&scratch.0).err(), Store::open(&scratch.0).err()].map(|e| e.unwrap().to_string());
        let (database, last) = (scratch.0.join(DATABASE), scratch.0.join(LAST));
        let bytes = fs::read(&database).unwrap();
        fs::write(&database, &bytes[..bytes.len() - 3000]).unwrap();
        assert!(read(&scratch.0).is_err());
        fs::write(&database, &bytes).unwrap();
        for number in ["abc", "99999999999999999999999", "\u{0}"] {
            fs::write(&last, number).unwrap();
            assert!(
                fails().iter().all(|error| error.contains("is not the number of a record")),
                "{:?}",
                fails()
            );
        }
        fs::write(&last, "9\n").unwrap();
        assert_eq!(read(&scratch.0).unwrap().len(), 9);
        fs::remove_file(&database).unwrap();
        assert!(fails().iter().all(|error| error.contains("record 9 is missing")), "{:?}", fails());
    }
}
