//! What a coordinator knows, as a fold over its records: every attempt, every second, every result. The
//! bandwidth file is a function of the ledger, so a replay gives the same file, byte for byte.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_control::flashflow::accept::Verdict;
use tidegate_control::flashflow::aggregate::{self, Second};
use tidegate_control::flashflow::bandwidth_file::{BandwidthFile, BandwidthFileError, Line};
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{Parameters, Percent};
use tidegate_control::units::{Rate, Span};

use crate::identity::{hex, unhex};

/// One line of the state. Times are Unix seconds, rates bits per second, the rest bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// The coordinator started.
    Started {
        /// When.
        unix: u64,
        /// Which version of the software.
        version: String,
        /// Whether the state was empty: nothing before this record was deleted.
        fresh: bool,
    },
    /// A measurement begins.
    Attempt {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// The relay's identity.
        relay: String,
        /// `z0`
        guess: u64,
        /// `sum a_i`
        allocated: u64,
        /// The parameters in force.
        parameters: RecordedParameters,
    },
    /// A second of it.
    Second {
        /// Its token.
        id: String,
        /// From 1.
        second: u16,
        /// Echoed bytes per measurer.
        measurers: Vec<u64>,
        /// Background bytes the relay says it sent.
        sent: u64,
        /// And received.
        received: u64,
    },
    /// It is complete.
    Result {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// `z`
        estimate: u64,
        /// Whether the capacity allocated sufficed.
        conclusive: bool,
        /// Cells checked.
        checked: u64,
    },
    /// It failed; what was known of the relay stays.
    Failure {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// [`tidegate_proto::flashflow::message::Reason::name`]
        reason: String,
        /// `relay`, a measurer's name, or `coordinator`.
        by: String,
    },
    /// A bandwidth file was written.
    File {
        /// When.
        unix: u64,
        /// When the coordinator had started.
        started: u64,
        /// Relays of the network at that time, with what the file says besides their results.
        network: Vec<Described>,
        /// How long results counted.
        expiry_s: u64,
        /// Its SHA-256.
        sha256: String,
    },
}

/// Parameters as a record keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedParameters {
    multiplier: f64,
    epsilon1: f64,
    epsilon2: f64,
    background_percent: u8,
}

impl From<&Parameters> for RecordedParameters {
    fn from(p: &Parameters) -> RecordedParameters {
        RecordedParameters {
            multiplier: p.multiplier,
            epsilon1: p.epsilon1,
            epsilon2: p.epsilon2,
            background_percent: p.background.get(),
        }
    }
}

/// A relay as the bandwidth file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Identity.
    pub relay: String,
    /// Nickname.
    pub nickname: String,
    /// The average in its descriptor, bits per second.
    pub descriptor_limit: Option<u64>,
    /// Measured without echo cells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stock: bool,
}

/// A record that does not fit to those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError(String);

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

/// A complete measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Good {
    /// When it was complete.
    pub unix: u64,
    /// `z`
    pub estimate: Rate,
    /// Whether it bounds the truth.
    pub conclusive: bool,
}

/// What is known of one relay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The last good result: a conclusive one, or the largest lower bound since.
    pub good: Option<Good>,
    /// What to try next, if the last measurement was inconclusive.
    pub next_guess: Option<Rate>,
    /// When measurements began that the relay has counted.
    pub attempts: Vec<u64>,
    /// When measurements were complete.
    pub successes: Vec<u64>,
    /// When measurements failed.
    pub failures: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Running {
    relay: RelayId,
    guess: Rate,
    allocated: Rate,
    parameters: Parameters,
    seconds: Vec<Second>,
}

/// All that follows from the records.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    relays: BTreeMap<RelayId, History>,
    running: BTreeMap<String, Running>,
    /// Nothing before the first record was deleted.
    fresh: bool,
    /// Time of the first record.
    first: Option<u64>,
    /// Text of the last file that the records speak of.
    file: Option<String>,
}

impl Ledger {
    /// Takes in one more record.
    ///
    /// # Errors
    /// If the record contradicts the earlier ones, or a result does not follow from its seconds.
    pub fn apply(&mut self, record: &Record) -> Result<(), LedgerError> {
        let wrong = |what: String| Err(LedgerError(what));
        match record {
            // Whatever ran was interrupted: it neither counts nor takes anything away.
            Record::Started { unix, fresh, .. } => {
                for running in std::mem::take(&mut self.running).into_values() {
                    self.relays.entry(running.relay).or_default().failures.push(*unix);
                }
                self.fresh |= *fresh;
                self.first.get_or_insert(*unix);
            }
            Record::Attempt { id, unix, relay, guess, allocated, parameters } => {
                let Some(relay) = unhex(relay) else { return wrong(format!("{relay} is no relay")) };
                let Some(background) = Percent::new(parameters.background_percent) else {
                    return wrong(format!("attempt {id} has no background ratio"));
                };
                let parameters = Parameters {
                    multiplier: parameters.multiplier,
                    epsilon1: parameters.epsilon1,
                    epsilon2: parameters.epsilon2,
                    background,
                    ..Parameters::default()
                };
                let (guess, allocated) = (Rate(*guess), Rate(*allocated));
                let running = Running { relay, guess, allocated, parameters, seconds: Vec::new() };
                if self.running.insert(id.clone(), running).is_some() {
                    return wrong(format!("attempt {id} began twice"));
                }
                self.relays.entry(relay).or_default().attempts.push(*unix);
            }
            Record::Second { id, second, measurers, sent, received } => {
                let Some(running) = self.running.get_mut(id) else {
                    return self.unknown(id);
                };
                running.seconds.push(Second::new(measurers, *sent, *received, running.parameters.background));
                if running.seconds.len() != usize::from(*second) {
                    return wrong(format!("second {second} of {id} is out of order"));
                }
            }
            Record::Result { id, unix, estimate, conclusive, .. } => {
                let Some(running) = self.running.remove(id) else {
                    return self.unknown(id);
                };
                let z = aggregate::estimate(&running.seconds);
                if z != Some(Rate(*estimate)) {
                    return wrong(format!("result of {id} is {estimate} bit/s, its seconds give {z:?}"));
                }
                let verdict = running.parameters.judge(Rate(*estimate), running.guess, running.allocated);
                if matches!(verdict, Verdict::Conclusive(_)) != *conclusive {
                    return wrong(format!(
                        "result of {id} says conclusive: {conclusive}, which does not follow"
                    ));
                }
                let history = self.relays.entry(running.relay).or_default();
                history.successes.push(*unix);
                let new = Good { unix: *unix, estimate: Rate(*estimate), conclusive: *conclusive };
                history.next_guess = match verdict {
                    Verdict::Conclusive(_) => None,
                    Verdict::Again { guess } => Some(guess),
                };
                // A lower bound replaces a result only if it contradicts it.
                if *conclusive || history.good.is_none_or(|good| good.estimate < new.estimate) {
                    history.good = Some(new);
                }
            }
            Record::Failure { id, unix, .. } => {
                let Some(running) = self.running.remove(id) else {
                    return self.unknown(id);
                };
                self.relays.entry(running.relay).or_default().failures.push(*unix);
            }
            Record::File { unix, started, network, expiry_s, sha256 } => {
                let text = self.file_text(network, *unix, *started, Span::from_secs(*expiry_s));
                let text = text.map_err(|cause| LedgerError(cause.to_string()))?;
                let ours = crate::identity::digest(text.as_bytes());
                let covered = self.first.is_some_and(|first| first + expiry_s < *unix);
                if ours != *sha256 && (self.fresh || covered) {
                    return wrong(format!("the file of {unix} has digest {sha256}, the records give {ours}"));
                }
                self.file = Some(text);
            }
        }
        Ok(())
    }

    /// A record of a measurement whose beginning is not there: it was deleted by age, or something is wrong.
    fn unknown(&self, id: &str) -> Result<(), LedgerError> {
        if self.fresh {
            return Err(LedgerError(format!("measurement {id} is not running")));
        }
        Ok(())
    }

    /// What is known of a relay.
    pub fn history(&self, relay: &RelayId) -> Option<&History> {
        self.relays.get(relay)
    }

    /// The relay's last good result, unless it is older than `expiry`.
    pub fn good(&self, relay: &RelayId, now: u64, expiry: Span) -> Option<Good> {
        let good = self.relays.get(relay)?.good?;
        (now.saturating_sub(good.unix) <= expiry.0 / 1_000_000_000).then_some(good)
    }

    /// Measurements of the relay that began within the span before `now`.
    pub fn attempts_since(&self, relay: &RelayId, since: u64) -> usize {
        self.relays.get(relay).map_or(0, |h| h.attempts.iter().filter(|unix| **unix > since).count())
    }

    /// The file that the last [`Record::File`] speaks of.
    pub fn last_file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The bandwidth file as of `unix`.
    ///
    /// # Errors
    /// If a directory authority would refuse it.
    pub fn file_text(
        &self,
        network: &[Described],
        unix: u64,
        started: u64,
        expiry: Span,
    ) -> Result<String, BandwidthFileError> {
        // Only what lies within the results' lifetime, so that older records can be deleted.
        let recent = |times: &[u64]| {
            let oldest = unix.saturating_sub(expiry.0 / 1_000_000_000);
            times.iter().filter(|time| **time >= oldest).count() as u64
        };
        let (mut lines, mut excluded_old) = (Vec::new(), 0);
        for described in network {
            let Some(id) = unhex::<20>(&described.relay) else { continue };
            let Some(history) = self.relays.get(&id) else { continue };
            let Some(good) = self.good(&id, unix, expiry) else {
                excluded_old += u64::from(history.good.is_some());
                continue;
            };
            lines.push(Line {
                id,
                ed25519: None,
                nickname: described.nickname.clone(),
                capacity: good.estimate,
                descriptor_limit: described.descriptor_limit.map(Rate),
                time: good.unix,
                success: recent(&history.successes),
                failures: recent(&history.failures),
                conclusive: good.conclusive,
                stock: described.stock,
            });
        }
        let attempts = self.relays.values().map(|h| recent(&h.attempts)).sum();
        let failures = self.relays.values().map(|h| recent(&h.failures)).sum();
        BandwidthFile {
            latest: lines.iter().map(|line| line.time).max().unwrap_or(unix),
            earliest: lines.iter().map(|line| line.time).min().unwrap_or(unix),
            started,
            created: unix,
            software_version: env!("CARGO_PKG_VERSION").into(),
            network_relays: network.len() as u64,
            attempts,
            failures,
            excluded_old,
            lines,
        }
        .to_text()
    }
}

/// The name of a relay in records.
pub fn relay_name(id: &RelayId) -> String {
    hex(id).to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: RelayId = [0xab; 20];

    fn attempt(id: &str, unix: u64, guess: u64) -> Record {
        let p = Parameters::default();
        Record::Attempt {
            id: id.into(),
            unix,
            relay: relay_name(&RELAY),
            guess,
            allocated: p.demand(Rate(guess)).0,
            parameters: (&p).into(),
        }
    }

    fn second(id: &str, second: u16, bytes: u64) -> Record {
        Record::Second { id: id.into(), second, measurers: vec![bytes, bytes], sent: 0, received: 0 }
    }

    fn result(id: &str, unix: u64, estimate: u64, conclusive: bool) -> Record {
        Record::Result { id: id.into(), unix, estimate, conclusive, checked: 9 }
    }

    fn folded(records: &[Record]) -> Result<Ledger, LedgerError> {
        let mut ledger = Ledger::default();
        records.iter().try_for_each(|record| ledger.apply(record)).map(|()| ledger)
    }

    #[test]
    fn a_failure_or_an_interruption_keeps_the_last_good_result() {
        let start = |unix| Record::Started { unix, version: "1".into(), fresh: unix == 1 };
        let ledger = folded(&[
            start(1),
            attempt("a", 10, 2_000_000),
            second("a", 1, 100_000),
            result("a", 12, 1_600_000, true),
            attempt("b", 20, 1_600_000),
            second("b", 1, 5),
            Record::Failure { id: "b".into(), unix: 22, reason: "lost".into(), by: "relay".into() },
            attempt("c", 30, 1_600_000),
            start(40),
        ])
        .unwrap();
        let history = ledger.history(&RELAY).unwrap();
        assert_eq!(history.good, Some(Good { unix: 12, estimate: Rate(1_600_000), conclusive: true }));
        assert_eq!((&history.successes[..], &history.failures[..]), (&[12][..], &[22, 40][..]));
        assert_eq!(history.attempts, [10, 20, 30]);
        assert_eq!(ledger.attempts_since(&RELAY, 15), 2);
        let day = Span::from_secs(86_400);
        assert!(ledger.good(&RELAY, 12 + 86_400, day).is_some());
        assert_eq!(ledger.good(&RELAY, 13 + 86_400, day), None, "results past their age do not count");
    }

    #[test]
    fn an_inconclusive_result_raises_the_guess_and_is_a_lower_bound() {
        let ledger = folded(&[
            attempt("a", 10, 1_000_000),
            second("a", 1, 100_000),
            result("a", 12, 1_600_000, false),
        ]);
        let history = ledger.unwrap().history(&RELAY).unwrap().clone();
        assert_eq!(history.next_guess, Some(Rate(2_000_000)));
        assert!(!history.good.unwrap().conclusive);
    }

    #[test]
    fn records_that_do_not_follow_are_refused() {
        let a = attempt("a", 10, 2_000_000);
        let s = second("a", 1, 100_000);
        for bad in [
            vec![s.clone()],
            vec![result("a", 1, 2, true)],
            vec![a.clone(), a.clone()],
            vec![a.clone(), second("a", 2, 1)],
            vec![a.clone(), result("a", 12, 0, true)],
            vec![a.clone(), s.clone(), result("a", 12, 1_600_001, true)],
            vec![a.clone(), s.clone(), result("a", 12, 1_600_000, false)],
            vec![Record::Failure { id: "a".into(), unix: 1, reason: "lost".into(), by: "relay".into() }],
            vec![Record::File { unix: 1, started: 1, network: vec![], expiry_s: 1, sha256: "00".into() }],
        ] {
            let mut records = vec![Record::Started { unix: 0, version: "1".into(), fresh: true }];
            records.extend(bad);
            assert!(folded(&records).is_err(), "{records:?}");
        }
        // Where old records were deleted, a measurement may lack its beginning.
        assert!(folded(&[s, a]).is_ok());
    }

    #[test]
    fn records_read_as_they_were_written_and_unknown_fields_are_refused() {
        for record in [attempt("a", 1, 2), second("a", 1, 3), result("a", 4, 5, true)] {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
            let more = text.replacen('{', "{\"extra\":1,", 1);
            assert!(serde_json::from_str::<Record>(&more).is_err());
        }
    }
}
