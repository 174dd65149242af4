//! The coordinator's knowledge, computed from its records: every attempt, second and result.
//!
//! The bandwidth file is a function of the ledger, so a replay gives the same file, byte for byte.

use std::collections::BTreeMap;
use std::fmt;

use tidegate_control::flashflow::aggregate::{self, Second};
use tidegate_control::flashflow::bandwidth_file::{BandwidthFile, BandwidthFileError, Line};
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{MeasurementParameters, Percent, Verdict};
use tidegate_control::units::{Rate, Span};
use tidegate_proto::flashflow::Reason;

use super::record::{Described, Record, RecordedParameters};
use crate::identity::unhex;

/// A record that contradicts earlier ones.
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
pub(crate) struct RelayResult {
    /// Unix time of completion.
    pub unix: u64,
    /// Estimate `z`.
    pub estimate: Rate,
    /// Whether the estimate bounds the true capacity.
    pub conclusive: bool,
}

/// Measurements of one relay.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct History {
    /// All results, in the order of the records.
    results: Vec<RelayResult>,
    /// The next guess, if the last measurement was inconclusive.
    pub next_guess: Option<Rate>,
    /// Unix times at which measurements began.
    pub attempts: Vec<u64>,
    /// Those of `attempts` that count against the relay. Failures by others before the load do not.
    counted: Vec<u64>,
    /// Unix times at which measurements were complete.
    pub successes: Vec<u64>,
    /// Unix times at which measurements failed.
    pub failures: Vec<u64>,
}

impl History {
    /// The result that counts among those since `oldest`: the last conclusive one, or a larger lower bound after it.
    fn good(&self, oldest: u64) -> Option<RelayResult> {
        let current = self.results.iter().filter(|result| result.unix >= oldest);
        current.copied().fold(None, |good: Option<RelayResult>, next| match good {
            // A lower bound replaces a result only if it contradicts it.
            Some(good) if !next.conclusive && next.estimate <= good.estimate => Some(good),
            _ => Some(next),
        })
    }

    /// Adds a complete measurement.
    fn succeeded(&mut self, good: RelayResult, verdict: Verdict) {
        self.successes.push(good.unix);
        self.next_guess = match verdict {
            Verdict::Conclusive(_) => None,
            Verdict::Again { guess } => Some(guess),
        };
        self.results.push(good);
    }

    /// The coordinator ended during a measurement. Before the load, neither side counts it.
    fn interrupted(&mut self, unix: u64, running: &Running) {
        self.failures.push(unix);
        if running.seconds.is_empty() {
            self.uncount(running.began);
        }
    }

    /// A measurement that began then does not count against the relay.
    fn uncount(&mut self, began: u64) {
        let at = self.counted.iter().rposition(|counted| *counted == began);
        at.map(|at| self.counted.remove(at));
    }

    /// Removes all times after `latest` and returns their number.
    fn forget_after(&mut self, latest: u64) -> usize {
        let before = self.results.len();
        self.results.retain(|good| good.unix <= latest);
        let mut forgotten = before - self.results.len();
        if forgotten > 0 {
            self.next_guess = None;
        }
        for times in [&mut self.attempts, &mut self.counted, &mut self.successes, &mut self.failures] {
            let before = times.len();
            times.retain(|unix| *unix <= latest);
            forgotten += before - times.len();
        }
        forgotten
    }
}

/// Largest plausible clock error at a start: records further in the future were written under a wrong clock.
const FUTURE_S: u64 = 86_400;

#[derive(Clone, Debug)]
struct Running {
    began: u64,
    relay: RelayId,
    guess: Rate,
    allocated: Rate,
    parameters: MeasurementParameters,
    seconds: Vec<Second>,
}

impl Running {
    /// Judges a result after checking that it follows from the seconds.
    fn verdict(&self, id: &str, good: RelayResult) -> Result<Verdict, LedgerError> {
        let z = aggregate::estimate(&self.seconds);
        let RelayResult { estimate, conclusive, .. } = good;
        if z != Some(estimate) {
            let given = z.map_or("none".into(), |rate| format!("{} bit/s", rate.0));
            let cause = format!("the result of {id} is {} bit/s, but its seconds give {given}", estimate.0);
            return Err(LedgerError(cause));
        }
        let verdict = self.parameters.judge(estimate, self.guess, self.allocated);
        if matches!(verdict, Verdict::Conclusive(_)) != conclusive {
            let cause =
                format!("the result of {id} says conclusive: {conclusive}, which contradicts its seconds");
            return Err(LedgerError(cause));
        }
        Ok(verdict)
    }
}

/// The parameters with which an attempt is judged.
fn judged_by(id: &str, recorded: &RecordedParameters) -> Result<MeasurementParameters, LedgerError> {
    let Some(background) = Percent::new(recorded.background_percent) else {
        return Err(LedgerError(format!("attempt {id} has no background ratio")));
    };
    Ok(MeasurementParameters {
        multiplier: recorded.multiplier,
        epsilon1: recorded.epsilon1,
        epsilon2: recorded.epsilon2,
        background,
        ..MeasurementParameters::default()
    })
}

/// Value of `by` for a failure caused by the relay.
pub(crate) const BY_RELAY: &str = "relay";

/// The state that follows from the records.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    relays: BTreeMap<RelayId, History>,
    running: BTreeMap<String, Running>,
    /// Whether no record was deleted before the first one.
    fresh: bool,
    /// Unix time of the first record.
    first: Option<u64>,
    /// Text of the last bandwidth file.
    file: Option<String>,
    /// Number of times found in the future at the last start.
    ahead_of_clock: usize,
}

impl Ledger {
    /// Applies one more record.
    ///
    /// # Errors
    /// If the record contradicts earlier ones, or a result does not follow from its seconds.
    pub fn apply(&mut self, record: &Record) -> Result<(), LedgerError> {
        let wrong = |what: String| Err(LedgerError(what));
        match record {
            // Running measurements were interrupted: they count as failed, and earlier results stay.
            Record::Started { unix, fresh, .. } => {
                std::mem::take(&mut self.running).into_values().for_each(|running| {
                    self.relays.entry(running.relay).or_default().interrupted(*unix, &running);
                });
                let latest = unix + FUTURE_S;
                self.ahead_of_clock =
                    self.relays.values_mut().map(|history| history.forget_after(latest)).sum();
                self.fresh |= *fresh;
                self.first.get_or_insert(*unix);
            }
            Record::Attempt { id, unix, relay, guess, allocated, parameters } => {
                let Some(relay) = unhex(relay) else {
                    return wrong(format!("{relay} is not a relay identity"));
                };
                let running = Running {
                    began: *unix,
                    relay,
                    guess: Rate(*guess),
                    allocated: Rate(*allocated),
                    parameters: judged_by(id, parameters)?,
                    seconds: Vec::new(),
                };
                if self.running.insert(id.clone(), running).is_some() {
                    return wrong(format!("attempt {id} began twice"));
                }
                let history = self.relays.entry(relay).or_default();
                history.attempts.push(*unix);
                history.counted.push(*unix);
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
                let good = RelayResult { unix: *unix, estimate: Rate(*estimate), conclusive: *conclusive };
                let verdict = running.verdict(id, good)?;
                self.relays.entry(running.relay).or_default().succeeded(good, verdict);
            }
            Record::Failure { id, unix, reason, by } => {
                let Some(running) = self.running.remove(id) else {
                    return self.unknown(id);
                };
                let history = self.relays.entry(running.relay).or_default();
                history.failures.push(*unix);
                // The relay may refuse circuits. Other failures before the first echoed cell are not caused by
                // it.
                let its_doing = by == BY_RELAY || reason == Reason::Circuits.name();
                if !its_doing && running.seconds.is_empty() {
                    history.uncount(running.began);
                }
            }
            Record::File { unix, started, network, expiry_s, sha256, consensus_relays } => {
                let (of, expiry) = ((&network[..], *consensus_relays), Span::from_secs(*expiry_s));
                let text = self.file_text(of, *unix, *started, expiry);
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

    /// Handles a record of a measurement without a start: an error, unless old records were deleted.
    fn unknown(&self, id: &str) -> Result<(), LedgerError> {
        if self.fresh {
            return Err(LedgerError(format!("measurement {id} is not running")));
        }
        Ok(())
    }

    /// Measurements of a relay.
    pub(crate) fn history(&self, relay: &RelayId) -> Option<&History> {
        self.relays.get(relay)
    }

    /// The relay's last result that counts, unless it is older than `expiry`.
    pub(crate) fn good(&self, relay: &RelayId, now: u64, expiry: Span) -> Option<RelayResult> {
        self.relays.get(relay)?.good(now.saturating_sub(expiry.0 / 1_000_000_000))
    }

    /// Number of times found in the future at the last start, which are ignored.
    pub(crate) fn ahead_of_clock(&self) -> usize {
        self.ahead_of_clock
    }

    /// Number of measurements after `since` that count against the relay.
    pub(crate) fn attempts_since(&self, relay: &RelayId, since: u64) -> usize {
        self.relays.get(relay).map_or(0, |h| h.counted.iter().filter(|unix| **unix > since).count())
    }

    /// Text of the bandwidth file in the last [`Record::File`].
    pub fn last_file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The bandwidth file as of `unix`, for the relays that may be measured and the size of the network.
    ///
    /// # Errors
    /// If a directory authority would refuse the file.
    pub(crate) fn file_text(
        &self,
        (network, of): (&[Described], Option<u64>),
        unix: u64,
        started: u64,
        expiry: Span,
    ) -> Result<String, BandwidthFileError> {
        // Count only times within the results' lifetime, so that older records can be deleted.
        let recent = |times: &[u64]| {
            let oldest = unix.saturating_sub(expiry.0 / 1_000_000_000);
            times.iter().filter(|time| **time >= oldest).count() as u64
        };
        let (mut lines, mut excluded_old) = (Vec::new(), 0);
        for described in network {
            let Some(id) = unhex::<20>(&described.relay) else { continue };
            let Some(history) = self.relays.get(&id) else { continue };
            let Some(good) = self.good(&id, unix, expiry) else {
                excluded_old += u64::from(!history.results.is_empty());
                continue;
            };
            lines.push(Line {
                id,
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
            network_relays: of.unwrap_or(network.len() as u64),
            attempts,
            failures,
            excluded_old,
            lines,
        }
        .to_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::flashflow::bandwidth_file::relay_name;

    const RELAY: RelayId = [0xab; 20];

    fn attempt(id: &str, unix: u64, guess: u64) -> Record {
        let p = MeasurementParameters::default();
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
        assert_eq!(
            history.good(0),
            Some(RelayResult { unix: 12, estimate: Rate(1_600_000), conclusive: true })
        );
        assert_eq!((&history.successes[..], &history.failures[..]), (&[12][..], &[22, 40][..]));
        assert_eq!(history.attempts, [10, 20, 30]);
        assert_eq!(
            ledger.attempts_since(&RELAY, 15),
            1,
            "the coordinator ended before the load of the last one"
        );
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
        assert!(!history.good(0).unwrap().conclusive);
    }

    #[test]
    fn a_lower_bound_counts_once_a_larger_result_has_expired() {
        let ledger = folded(&[
            attempt("a", 10, 4_000_000),
            second("a", 1, 200_000),
            result("a", 12, 3_200_000, true),
            attempt("b", 90_000, 1_000_000),
            second("b", 1, 100_000),
            result("b", 90_002, 1_600_000, false),
        ]);
        let (ledger, day) = (ledger.unwrap(), Span::from_secs(86_400));
        let estimate = |now, expiry| ledger.good(&RELAY, now, expiry).unwrap().estimate;
        assert_eq!(estimate(90_003, day), Rate(1_600_000));
        assert_eq!(estimate(90_003, day * 2), Rate(3_200_000));
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
            vec![Record::File {
                unix: 1,
                started: 1,
                network: vec![],
                expiry_s: 1,
                sha256: "00".into(),
                consensus_relays: None,
            }],
        ] {
            let mut records = vec![Record::Started { unix: 0, version: "1".into(), fresh: true }];
            records.extend(bad);
            assert!(folded(&records).is_err(), "{records:?}");
        }
        // Where old records were deleted, a measurement may lack its start.
        assert!(folded(&[s, a]).is_ok());
    }

    #[test]
    fn a_failure_that_the_relay_did_not_cause_does_not_count_against_it() {
        let failure = |id: &str, reason: Reason, by: &str| Record::Failure {
            id: id.into(),
            unix: 15,
            reason: reason.name().into(),
            by: by.into(),
        };
        for (reason, by, loaded, counts) in [
            (Reason::Lost, "m1", false, 0),
            (Reason::Timeout, "coordinator", false, 0),
            (Reason::Lost, BY_RELAY, false, 1),
            (Reason::Circuits, "m1", false, 1),
            (Reason::Lost, "m1", true, 1),
        ] {
            let mut records = vec![attempt("a", 10, 2_000_000)];
            records.extend(loaded.then(|| second("a", 1, 5)));
            records.push(failure("a", reason, by));
            let ledger = folded(&records).unwrap();
            assert_eq!(ledger.attempts_since(&RELAY, 0), counts, "{reason:?} by {by}");
            assert_eq!(ledger.history(&RELAY).unwrap().failures, [15]);
        }
    }

    #[test]
    fn entries_from_the_future_are_dropped_at_the_next_start() {
        let future = 400 * 86_400;
        let start = |unix| Record::Started { unix, version: "1".into(), fresh: unix == 1 };
        let measured = |id: &str, unix| {
            [attempt(id, unix, 2_000_000), second(id, 1, 100_000), result(id, unix + 1, 1_600_000, true)]
        };
        let mut records = vec![start(1)];
        records.extend(measured("a", 10));
        records.push(start(future));
        records.extend(measured("b", future + 5));
        records.push(start(100));
        let ledger = folded(&records).unwrap();
        assert_eq!(ledger.good(&RELAY, 200, Span::from_secs(86_400)).map(|good| good.unix), Some(11));
        assert_eq!(ledger.attempts_since(&RELAY, 50), 0);
        assert_eq!(ledger.ahead_of_clock(), 4, "an attempt, twice, a success and a result");
        // A difference of one day is within the tolerance.
        records.pop();
        records.push(start(future + 5 - 86_400));
        assert_eq!(folded(&records).unwrap().ahead_of_clock(), 2, "the result, a second later");
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
