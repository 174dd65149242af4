//! Files of the working folder, which hold the collected data in a form that can be read in order of time.
//!
//! Three files are append-only: identities (20 bytes each), advertised bandwidths (16 bytes each, in sorted runs) and
//! consensuses (8 bytes per relay). `progress.json` records their lengths; bytes beyond come from an interrupted input
//! and are cut off.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::errors::Advertised;

/// Bytes of an advertised bandwidth: time, relay, bytes per second.
const RECORD: usize = 16;

/// Times fit 32 bits until 2106.
fn encode(said: &Advertised) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&(said.time as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&said.relay.to_le_bytes());
    bytes[8..].copy_from_slice(&said.bytes_per_s.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; RECORD]) -> Advertised {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let bytes_per_s = u64::from(word(8)) | u64::from(word(12)) << 32;
    Advertised { time: u64::from(word(0)), relay: word(4), bytes_per_s }
}

/// An append-only file.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// Its length in bytes.
    pub length: u64,
}

impl Log {
    /// Opens or creates the file, and cuts it off at `length`.
    pub(crate) fn open(path: &Path, length: u64) -> io::Result<Log> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() < length {
            return Err(io::Error::other("it is shorter than `progress.json` says"));
        }
        file.set_len(length)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Log { file, length })
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file to disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Reads `length` bytes at the offset `at`.
    pub(crate) fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Sorts and appends a run of advertised bandwidths.
pub(crate) fn append_run(log: &mut Log, said: &mut Vec<Advertised>) -> io::Result<()> {
    said.sort_unstable();
    let bytes: Vec<u8> = said.iter().flat_map(encode).collect();
    said.clear();
    log.append(&bytes)
}

/// Merges the sorted runs of a file in order of time, without duplicates.
pub(crate) struct Merge {
    runs: Vec<BufReader<io::Take<File>>>,
    heads: BinaryHeap<Reverse<(Advertised, usize)>>,
    last: Option<Advertised>,
}

impl Merge {
    /// Opens the runs of a file; `ends` are the byte offsets of their ends.
    pub(crate) fn open(path: &Path, ends: &[u64]) -> io::Result<Merge> {
        let mut merge = Merge { runs: Vec::new(), heads: BinaryHeap::new(), last: None };
        let mut begin = 0;
        for &end in ends {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(begin))?;
            merge.runs.push(BufReader::with_capacity(1 << 16, file.take(end - begin)));
            merge.next_of(merge.runs.len() - 1)?;
            begin = end;
        }
        Ok(merge)
    }

    fn next_of(&mut self, run: usize) -> io::Result<()> {
        let mut bytes = [0; RECORD];
        match self.runs[run].read_exact(&mut bytes) {
            Ok(()) => self.heads.push(Reverse((decode(&bytes), run))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Iterator for Merge {
    type Item = io::Result<Advertised>;

    fn next(&mut self) -> Option<io::Result<Advertised>> {
        loop {
            let Reverse((said, run)) = self.heads.pop()?;
            if let Err(error) = self.next_of(run) {
                return Some(Err(error));
            }
            if self.last != Some(said) {
                self.last = Some(said);
                return Some(Ok(said));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_in_order_and_once() {
        let path = std::env::temp_dir().join(format!("tidegate-runs-{}", std::process::id()));
        let said = |time, relay, bytes_per_s| Advertised { time, relay, bytes_per_s };
        let mut log = Log::open(&path, 0).unwrap();
        let mut ends = Vec::new();
        for run in [vec![said(5, 0, 1 << 40), said(1, 1, 2)], vec![said(3, 0, 9), said(5, 0, 1 << 40)]] {
            append_run(&mut log, &mut run.clone()).unwrap();
            ends.push(log.length);
        }
        // A run that was cut off does not count.
        log.append(&[1; 20]).unwrap();
        let merged: Vec<Advertised> = Merge::open(&path, &ends).unwrap().map(Result::unwrap).collect();
        assert_eq!(merged, [said(1, 1, 2), said(3, 0, 9), said(5, 0, 1 << 40)]);
        drop(Log::open(&path, ends[1]).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), ends[1]);
        assert!(Log::open(&path, 1 << 20).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
