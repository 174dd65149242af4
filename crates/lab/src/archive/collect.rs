//! Collects an archive's files into a working folder; an interrupted collection can resume.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use tidegate_data::collector::{self, Entry};
use tidegate_data::consensus::{Consensus, Identity};
use tidegate_data::document::DataError;

use super::errors::Advertised;
use super::store::{Log, Merge, append_run};
use crate::input::InputError;
use crate::monitor::Monitor;

/// Number of advertised bandwidths to hold in memory before they are sorted and written.
const RUN: usize = 1 << 20;
/// Maximum number of broken documents to name; all of them are counted.
const NAMED: usize = 1000;

/// Position of a consensus in the working folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Hour {
    /// Its valid-after time, seconds since 1970.
    pub time: u64,
    at: u64,
    relays: u32,
}

/// Number of documents in the inputs, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Server descriptors.
    pub descriptors: u64,
    /// Extra-infos with a history of written bytes.
    pub extra_infos: u64,
    /// Consensuses.
    pub consensuses: u64,
    /// Further consensuses of an hour that is already collected.
    pub duplicate_consensuses: u64,
    /// Documents that could not be read.
    pub broken: u64,
    /// Files and documents of other kinds.
    pub foreign: u64,
}

/// State of the collection, stored in `progress.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Completed files: name, length, time of modification.
    inputs: Vec<(PathBuf, u64, u64)>,
    identities: u64,
    runs: Vec<u64>,
    consensuses: u64,
    hours: Vec<Hour>,
    counts: Counts,
    problems: Vec<String>,
    /// Bytes written and seconds covered, by relay.
    carried: Vec<(u64, u64)>,
}

/// A working folder.
pub struct Collected {
    folder: PathBuf,
    relays: Vec<Identity>,
    numbers: BTreeMap<Identity, u32>,
    identities: Log,
    advertised: Log,
    consensuses: Log,
    pending: Vec<Advertised>,
    progress: Progress,
}

impl Collected {
    /// Opens or creates a working folder.
    ///
    /// # Errors
    /// If it cannot be written, or holds other files.
    pub fn open(folder: &Path) -> Result<Collected, InputError> {
        let wrong = |cause: String| {
            let cure = "choose another folder, or remove this one";
            InputError::new(folder.display().to_string(), cause, cure)
        };
        let open = || -> io::Result<Collected> {
            fs::create_dir_all(folder)?;
            let progress: Progress = match fs::read(folder.join("progress.json")) {
                Ok(bytes) => serde_json::from_slice(&bytes)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Progress::default(),
                Err(error) => return Err(error),
            };
            // Never write into a folder with foreign files.
            if progress.inputs.is_empty()
                && fs::read_dir(folder)?.any(|entry| entry.is_ok_and(|e| foreign(&e)))
            {
                return Err(io::Error::other("the folder holds other files"));
            }
            let identities = Log::open(&folder.join("identities"), progress.identities)?;
            let bytes = identities.read(0, progress.identities as usize)?;
            let relays: Vec<Identity> = bytes.as_chunks::<20>().0.iter().map(|id| Identity(*id)).collect();
            Ok(Collected {
                numbers: (0..).zip(&relays).map(|(number, identity)| (*identity, number)).collect(),
                relays,
                identities,
                advertised: Log::open(
                    &folder.join("advertised"),
                    progress.runs.last().copied().unwrap_or(0),
                )?,
                consensuses: Log::open(&folder.join("consensuses"), progress.consensuses)?,
                pending: Vec::new(),
                progress,
                folder: folder.to_owned(),
            })
        };
        open().map_err(|error| wrong(format!("cannot be used: {error}")))
    }

    /// Reads every input that is not collected yet. Returns false if the user stopped it.
    ///
    /// # Errors
    /// If a path cannot be accessed, or the working folder cannot be written. An input that ends with an error counts as
    /// broken; the documents before the error are kept.
    pub fn collect(&mut self, paths: &[PathBuf], monitor: &dyn Monitor) -> Result<bool, InputError> {
        let inputs = collector::inputs(paths).map_err(|error| input_error(&error))?;
        let ours = self.folder.canonicalize().unwrap_or_default();
        let count = inputs.len();
        for (index, input) in inputs.into_iter().enumerate() {
            if input.canonicalize().is_ok_and(|path| path.starts_with(&ours)) {
                continue;
            }
            let about = stamp(&input);
            if self.progress.inputs.contains(&about) {
                continue;
            }
            let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut failure = None;
            let mut stopped = false;
            let result = collector::read(&input, &mut |entry| {
                monitor.progress("archive", &name, index as f64 / count as f64);
                if let Err(error) = self.take(entry) {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
                stopped = monitor.stopped();
                if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if let Some(error) = failure {
                return Err(self.unwritable(&error));
            }
            if stopped {
                return Ok(false);
            }
            if let Err(error) = result {
                self.broken(&error);
            }
            self.progress.inputs.push(about);
            // Small files share a run, because merging opens one file per run.
            if self.pending.len() >= RUN / 4 || index % 1000 == 999 {
                self.commit().map_err(|error| self.unwritable(&error))?;
            }
        }
        self.commit().map_err(|error| self.unwritable(&error))?;
        Ok(true)
    }

    fn take(&mut self, entry: Entry) -> io::Result<()> {
        match entry {
            Entry::Descriptor(relay) => {
                self.progress.counts.descriptors += 1;
                let (time, bytes_per_s) = (relay.published, relay.advertised());
                let relay = self.number(relay.identity)?;
                self.pending.push(Advertised { time, relay, bytes_per_s });
                if self.pending.len() >= RUN {
                    self.flush()?;
                }
            }
            Entry::ExtraInfo(info) => {
                self.progress.counts.extra_infos += 1;
                let relay = self.number(info.identity)? as usize;
                let carried = &mut self.progress.carried;
                // Relays are numbered in order of appearance, so the list may be too short.
                carried.resize(carried.len().max(relay + 1), (0, 0));
                carried[relay].0 =
                    info.written.iter().fold(carried[relay].0, |sum, bytes| sum.saturating_add(*bytes));
                carried[relay].1 += info.interval * info.written.len() as u64;
            }
            Entry::Consensus(consensus) => self.consensus(&consensus)?,
            Entry::Broken(error) => self.broken(&error),
            Entry::Foreign(what) => {
                self.progress.counts.foreign += 1;
                self.name(what);
            }
        }
        Ok(())
    }

    fn consensus(&mut self, consensus: &Consensus) -> io::Result<()> {
        if self.progress.hours.iter().any(|hour| hour.time == consensus.valid_after) {
            self.progress.counts.duplicate_consensuses += 1;
            return Ok(());
        }
        self.progress.counts.consensuses += 1;
        let mut bytes = Vec::with_capacity(8 * consensus.relays.len());
        for relay in consensus.relays.iter().filter(|relay| relay.flags.running()) {
            bytes.extend(self.number(relay.identity)?.to_le_bytes());
            bytes.extend(relay.bandwidth.to_le_bytes());
        }
        let (at, relays) = (self.consensuses.length, (bytes.len() / 8) as u32);
        self.consensuses.append(&bytes)?;
        self.progress.hours.push(Hour { time: consensus.valid_after, at, relays });
        Ok(())
    }

    fn number(&mut self, identity: Identity) -> io::Result<u32> {
        if let Some(number) = self.numbers.get(&identity) {
            return Ok(*number);
        }
        let number = self.relays.len() as u32;
        self.identities.append(&identity.0)?;
        self.relays.push(identity);
        self.numbers.insert(identity, number);
        Ok(number)
    }

    fn broken(&mut self, error: &DataError) {
        self.progress.counts.broken += 1;
        self.name(error.to_string());
    }

    fn name(&mut self, problem: String) {
        if self.progress.problems.len() < NAMED {
            self.progress.problems.push(problem);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            append_run(&mut self.advertised, &mut self.pending)?;
            self.progress.runs.push(self.advertised.length);
        }
        Ok(())
    }

    /// Makes the state durable; a later run resumes here.
    fn commit(&mut self) -> io::Result<()> {
        self.flush()?;
        for log in [&self.identities, &self.advertised, &self.consensuses] {
            log.sync()?;
        }
        self.progress.identities = self.identities.length;
        self.progress.consensuses = self.consensuses.length;
        let fresh = self.folder.join("progress.json.new");
        fs::write(&fresh, serde_json::to_vec(&self.progress)?)?;
        fs::File::open(&fresh)?.sync_data()?;
        fs::rename(fresh, self.folder.join("progress.json"))
    }

    fn unwritable(&self, error: &io::Error) -> InputError {
        let cure = "free space or choose another folder, then run the command again; it resumes";
        InputError::new(self.folder.display().to_string(), format!("cannot be written: {error}"), cure)
    }

    fn unreadable(&self, error: &io::Error) -> InputError {
        let cure = "remove the folder and run the command again";
        InputError::new(self.folder.display().to_string(), format!("cannot be read: {error}"), cure)
    }

    /// All relays, by index.
    pub(crate) fn relays(&self) -> &[Identity] {
        &self.relays
    }

    /// Number of documents found.
    pub fn counts(&self) -> &Counts {
        &self.progress.counts
    }

    /// Errors of the first 1000 documents that could not be read.
    pub fn problems(&self) -> &[String] {
        &self.progress.problems
    }

    /// Mean bytes per second that a relay wrote; NaN without an extra-info.
    pub(crate) fn carried_bytes_per_s(&self, relay: usize) -> f64 {
        self.progress.carried.get(relay).map_or(f64::NAN, |(bytes, seconds)| *bytes as f64 / *seconds as f64)
    }

    /// The hours of all consensuses, in order.
    pub(crate) fn consensuses(&self) -> Vec<Hour> {
        let mut hours = self.progress.hours.clone();
        hours.sort_unstable();
        hours
    }

    /// Running relays of an hour's consensus, and their weights.
    ///
    /// # Errors
    /// If the working folder cannot be read.
    pub(crate) fn weights(&self, hour: &Hour) -> Result<Vec<(u32, u32)>, InputError> {
        let bytes = self.consensuses.read(hour.at, hour.relays as usize * 8);
        let bytes = bytes.map_err(|error| self.unreadable(&error))?;
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(bytes.as_chunks::<8>().0.iter().map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect())
    }

    /// All advertised bandwidths, in order of time.
    ///
    /// # Errors
    /// If the working folder cannot be read.
    pub(crate) fn descriptors(
        &self,
    ) -> Result<impl Iterator<Item = Result<Advertised, InputError>> + '_, InputError> {
        let merge = Merge::open(&self.folder.join("advertised"), &self.progress.runs);
        let merge = merge.map_err(|error| self.unreadable(&error))?;
        Ok(merge.map(|said| said.map_err(|error| self.unreadable(&error))))
    }
}

fn foreign(entry: &fs::DirEntry) -> bool {
    let ours = ["identities", "advertised", "consensuses", "progress.json", "progress.json.new"];
    !ours.iter().any(|name| entry.file_name() == *name)
}

/// Identifies a file: name, length, time of modification.
fn stamp(path: &Path) -> (PathBuf, u64, u64) {
    let about = path.metadata().ok();
    let changed = about.as_ref().and_then(|about| about.modified().ok());
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    (path.to_owned(), about.map_or(0, |about| about.len()), changed.map_or(0, |since| since.as_secs()))
}

fn input_error(error: &DataError) -> InputError {
    InputError::new(error.file.clone(), error.cause.clone(), error.cure.clone())
}
