//! The file of results for a directory authority (Tor's bandwidth-file-spec, version 1.5.0).
//!
//! This module builds, checks and formats a file, and does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::schedule::RelayId;
use crate::text::{hex, unhex};
use crate::units::Rate;

/// Version of the format.
pub(crate) const VERSION: &str = "1.5.0";

/// A bandwidth file.
#[derive(Clone, Debug, PartialEq)]
pub struct BandwidthFile {
    /// Unix time of the newest result; Tor ignores files older than three days.
    pub latest: u64,
    /// Unix time of the oldest result in the file.
    pub earliest: u64,
    /// Unix time at which the coordinator started.
    pub started: u64,
    /// Unix time at which the file was made.
    pub created: u64,
    /// Version of the software.
    pub software_version: String,
    /// Number of relays in the network, measured or not.
    pub network_relays: u64,
    /// Number of measurements within the results' lifetime.
    pub attempts: u64,
    /// Number of failed measurements within the results' lifetime.
    pub failures: u64,
    /// Number of results that are left out because of their age.
    pub excluded_old: u64,
    /// One line per relay.
    pub lines: Vec<Line>,
}

/// Result of one relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Identity.
    pub id: RelayId,
    /// Nickname.
    pub nickname: String,
    /// Estimate.
    pub capacity: Rate,
    /// Average rate in the relay's descriptor; the weight must not exceed it.
    pub descriptor_limit: Option<Rate>,
    /// Unix time of the measurement.
    pub time: u64,
    /// Number of complete measurements within the results' lifetime.
    pub success: u64,
    /// Number of failed measurements within the results' lifetime.
    pub failures: u64,
    /// Whether the last measurement bounds the true capacity; otherwise it is a lower bound.
    pub conclusive: bool,
    /// Measured through ordinary circuits without echo cells, which is weaker evidence.
    pub stock: bool,
}

/// Below this share of measured relays, in percent, the lines carry `vote=0`.
const MINIMUM_PERCENT: u64 = 60;

/// Reason why a file cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BandwidthFileError {
    /// The file names a relay twice, which Tor and stem refuse.
    Duplicate(RelayId),
    /// A nickname is not 1 to 19 letters and digits.
    Nickname(String),
}

impl fmt::Display for BandwidthFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BandwidthFileError::Duplicate(id) => write!(f, "relay ${} appears twice", relay_name(id)),
            BandwidthFileError::Nickname(name) => {
                write!(f, "nickname `{}` is not 1 to 19 letters and digits", name.escape_debug())
            }
        }
    }
}

impl std::error::Error for BandwidthFileError {}

impl BandwidthFile {
    /// Formats the file, with lines in the order of relay identities.
    ///
    /// # Errors
    /// If a directory authority or stem would refuse the file.
    pub fn to_text(&self) -> Result<String, BandwidthFileError> {
        let mut seen = BTreeSet::new();
        for line in &self.lines {
            line.check()?;
            if !seen.insert(line.id) {
                return Err(BandwidthFileError::Duplicate(line.id));
            }
        }
        let eligible = self.lines.len() as u64;
        // bandwidth-file-spec: a generator must not vote with results of less than 60 % of the network.
        let minimum = self.network_relays * MINIMUM_PERCENT / 100;
        let too_few = eligible < minimum;
        let percent = (eligible * 100).checked_div(self.network_relays).unwrap_or(100).min(100);
        let mut text = format!("{}\nversion={VERSION}\n", self.latest);
        let mut header = |key: &str, value: &dyn fmt::Display| text.push_str(&format!("{key}={value}\n"));
        header("software", &"tidegate-flashflow");
        header("software_version", &self.software_version);
        header("file_created", &iso(self.created));
        header("generator_started", &iso(self.started));
        header("earliest_bandwidth", &iso(self.earliest));
        header("latest_bandwidth", &iso(self.latest));
        header("number_eligible_relays", &eligible);
        header("minimum_percent_eligible_relays", &MINIMUM_PERCENT);
        header("number_consensus_relays", &self.network_relays);
        header("percent_eligible_relays", &percent);
        header("minimum_number_eligible_relays", &minimum);
        header("recent_measurement_attempt_count", &self.attempts);
        header("recent_measurement_failure_count", &self.failures);
        header("recent_measurements_excluded_old_count", &self.excluded_old);
        text.push_str("=====\n");
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_by_key(|line| line.id);
        for line in lines {
            line.write(&mut text, too_few);
        }
        Ok(text)
    }
}

impl Line {
    /// The weight in kilobytes (1000 bytes) per second: at least 1, at most the descriptor's limit.
    pub(crate) fn weight(&self) -> u64 {
        let capacity = self.descriptor_limit.map_or(self.capacity, |limit| self.capacity.min(limit));
        (capacity.0 / 8000).max(1)
    }

    fn check(&self) -> Result<(), BandwidthFileError> {
        let name = &self.nickname;
        if !(1..=19).contains(&name.len()) || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(BandwidthFileError::Nickname(name.clone()));
        }
        Ok(())
    }

    fn write(&self, text: &mut String, too_few: bool) {
        text.push_str(&format!(
            "node_id=${} bw={} nick={} time={} success={} error_misc={} conclusive={}",
            relay_name(&self.id),
            self.weight(),
            self.nickname,
            iso(self.time),
            self.success,
            self.failures,
            u8::from(self.conclusive)
        ));
        text.push_str(if self.stock { " target=stock" } else { "" });
        text.push_str(if too_few { " vote=0 under_min_report=1\n" } else { "\n" });
    }
}

/// Reason why a bandwidth file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// Line number, from 1.
    pub line: usize,
    /// The mistake.
    pub cause: &'static str,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

impl std::error::Error for ReadError {}

/// A relay in a bandwidth file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayWeight<'a> {
    /// Its identity.
    pub id: RelayId,
    /// Its weight, kB/s.
    pub weight: u64,
    /// Its nickname, if the file states it.
    pub nickname: Option<&'a str>,
    /// Whether authorities use the line: it lacks `vote=0` (bandwidth-file-spec 2.4.2).
    pub votes: bool,
}

/// Reads the relays of a bandwidth file of version 1.0 or later.
///
/// An annotation of CollecTor may come first (`@type bandwidth-file 1.0`).
/// Lines before the terminator are headers, and keys other than `node_id`, `bw`, `nick` and `vote` are ignored. Spaces or
/// tabs separate the pairs, as in tor.
///
/// # Errors
/// If the text is not a bandwidth file, or names a relay twice.
pub fn read_relays(text: &str) -> Result<Vec<RelayWeight<'_>>, ReadError> {
    if text.is_empty() {
        return Err(ReadError { line: 1, cause: "is empty" });
    }
    // Files of version 1.0 have neither headers nor a terminator.
    let first = text.lines().position(|line| !line.starts_with('@')).unwrap_or(0);
    let header = header_end(text).unwrap_or(first);
    let mut relays = Vec::new();
    let mut seen = BTreeSet::new();
    for (n, line) in text.lines().enumerate() {
        let fail = |cause| Err(ReadError { line: n + 1, cause });
        if n == first {
            if line.trim_end().parse::<u64>().is_err() {
                return fail("a bandwidth file begins with a Unix time");
            }
            continue;
        }
        if n <= header {
            continue;
        }
        let value =
            |key: &str| line.split([' ', '\t']).find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
        let Some(id) = value("node_id") else { continue };
        let Some(id) = unhex(id.strip_prefix('$').unwrap_or(id)) else {
            return fail("`node_id` is not an identity of 40 hexadecimal digits");
        };
        let Some(Ok(weight)) = value("bw").map(str::parse) else {
            return fail("`bw` is missing or not a whole number of kB/s");
        };
        if !seen.insert(id) {
            return fail("names a relay for the second time");
        }
        relays.push(RelayWeight { id, weight, nickname: value("nick"), votes: value("vote") != Some("0") });
    }
    Ok(relays)
}

/// The index of the line that ends the header.
fn header_end(text: &str) -> Option<usize> {
    text.lines().position(|line| matches!(line.trim_end(), "=====" | "===="))
}

/// Reads the weights that authorities use, in kB/s, as [`read_relays`].
///
/// # Errors
/// As [`read_relays`], or if every relay has `vote=0`.
pub fn read_weights(text: &str) -> Result<BTreeMap<RelayId, u64>, ReadError> {
    let relays = read_relays(text)?;
    let voted = relays.iter().filter(|relay| relay.votes);
    let weights: BTreeMap<RelayId, u64> = voted.map(|relay| (relay.id, relay.weight)).collect();
    if weights.is_empty() && !relays.is_empty() {
        let cause = "every relay has `vote=0`, so that authorities ignore the file; a coordinator writes it until it has measured 60 % of the network";
        return Err(ReadError { line: header_end(text).unwrap_or(0) + 2, cause });
    }
    Ok(weights)
}

/// Fewest authorities that must have measured a relay.
pub const LEAST_MEASURED: usize = 3;

/// Combines several coordinators' weights as directory authorities do (paper, section 5).
///
/// The result has the relays that at least three of the files name, with the median weight, the lower of two. Authorities
/// take other relays as unmeasured (tor's `dirvote.c`). While fewer than half of the coordinators that name a relay lie
/// about it, its median lies between two honest weights, so the bound of one honest estimate holds for the median.
pub fn median(files: &[BTreeMap<RelayId, u64>]) -> BTreeMap<RelayId, u64> {
    let mut all: BTreeMap<RelayId, Vec<u64>> = BTreeMap::new();
    for (id, weight) in files.iter().flatten() {
        all.entry(*id).or_default().push(*weight);
    }
    all.retain(|_, weights| weights.len() >= LEAST_MEASURED);
    all.into_iter()
        .map(|(id, mut weights)| {
            weights.sort_unstable();
            (id, weights[(weights.len() - 1) / 2])
        })
        .collect()
}

/// The identity of a relay in bandwidth files, records and logs: 40 upper-case hexadecimal digits.
pub fn relay_name(id: &RelayId) -> String {
    hex(id).to_uppercase()
}

/// A Unix time as `YYYY-MM-DDTHH:MM:SS` in UTC (civil-from-days, Gregorian calendar).
pub fn iso(unix: u64) -> String {
    let (days, second) = (unix / 86_400, unix % 86_400);
    // Days since 0000-03-01, in eras of 400 years. With March as first month the leap day comes last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liars_in_the_minority_do_not_move_the_median_beyond_honest_weights() {
        let file = |weights: [u64; 2]| BTreeMap::from([([1; 20], weights[0]), ([2; 20], weights[1])]);
        for lie in [0, 100, u64::MAX] {
            for honest in [[90, 110, 140], [140, 90, 110]] {
                let mut files: Vec<_> = honest.map(|weight| file([weight, 7])).to_vec();
                files.extend([file([lie, 7]), file([lie, 7])]);
                let median = median(&files)[&[1; 20]];
                assert!((90..=140).contains(&median), "{lie}: {median}");
            }
        }
        let four = [[1, 2], [9, 9], [3, 4], [0, 0]].map(file);
        assert_eq!(median(&four)[&[1; 20]], 1, "the lower of two");
        assert!(median(&four[..2]).is_empty(), "two authorities have no measured weight");
        let mut few = file([5, 5]);
        few.remove(&[2; 20]);
        let of_three = median(&[few.clone(), file([7, 7]), file([9, 9])]);
        assert_eq!(of_three, BTreeMap::from([([1; 20], 7)]), "two of three are not enough");
        let of_seven = [vec![few; 4], [[5, 50], [5, 150], [5, 100]].map(file).to_vec()].concat();
        assert_eq!(median(&of_seven)[&[2; 20]], 100, "three of seven are");
        assert!(median(&[]).is_empty());
    }

    #[test]
    fn written_values_are_read_back_and_nonsense_is_refused() {
        let text = "1600000000\nversion=1.5.0\n=====\nnode_id=$00000000000000000000000000000000000000Ab bw=7 x\n\
            bw=9 node_id=$01000000000000000000000000000000000000ff vote=0\n";
        let weights = read_weights(text).unwrap();
        assert_eq!(weights.values().copied().collect::<Vec<_>>(), [7], "`vote=0` does not count");
        assert_eq!(weights.keys().next().unwrap()[19], 0xab);
        assert_eq!(read_weights(&text.replace(' ', "\t")), Ok(weights.clone()), "tabs");
        assert_eq!(
            read_weights(&format!("@type bandwidth-file 1.0\n{text}")),
            Ok(weights.clone()),
            "of CollecTor"
        );
        assert_eq!(read_weights(&text.replace('\n', " \r\n")), Ok(weights.clone()), "line ends of Windows");
        let headed = text.replace("version=1.5.0", "node_id=x bw=y");
        assert!(read_weights(&headed).is_ok(), "a header is not a relay");
        let no_vote = read_weights(&text.replace("bw=7", "bw=7 vote=0")).unwrap_err();
        assert!(no_vote.line == 4 && no_vote.cause.contains("every relay has `vote=0`"), "{no_vote}");
        let after = |tail: &str| read_weights(&format!("{text}{tail}")).map_err(|error| error.line);
        assert_eq!(after("node_id=$00000000000000000000000000000000000000ab bw=7\n"), Err(6));
        assert_eq!(after("node_id=$00 bw=7\n"), Err(6));
        assert_eq!(after("node_id=$02000000000000000000000000000000000000ff bw=1.5\n"), Err(6));
        assert_eq!(after("node_id=$02000000000000000000000000000000000000ff\n"), Err(6));
        assert_eq!(read_weights("").unwrap_err().line, 1);
        assert_eq!(read_weights("\u{0}\n").unwrap_err().line, 1);
    }

    fn line(n: u8) -> Line {
        Line {
            id: [n; 20],
            nickname: format!("relay{n}"),
            capacity: Rate(250_000_000),
            descriptor_limit: None,
            time: 1_577_836_800,
            success: 1,
            failures: 0,
            conclusive: true,
            stock: false,
        }
    }

    fn file(lines: Vec<Line>) -> BandwidthFile {
        BandwidthFile {
            latest: 1_577_836_800,
            earliest: 1_577_800_000,
            started: 1_577_750_000,
            created: 1_577_836_801,
            software_version: "0.1.0".into(),
            network_relays: 2,
            attempts: 3,
            failures: 1,
            excluded_old: 0,
            lines,
        }
    }

    #[test]
    fn the_text_matches_the_specifications_example() {
        let mut limited = line(0xab);
        limited.descriptor_limit = Some(Rate(80_000_000));
        let text = file(vec![limited, line(1)]).to_text().unwrap();
        let expected = format!(
            "1577836800\nversion=1.5.0\nsoftware=tidegate-flashflow\nsoftware_version=0.1.0\n\
             file_created=2020-01-01T00:00:01\ngenerator_started=2019-12-30T23:53:20\n\
             earliest_bandwidth=2019-12-31T13:46:40\nlatest_bandwidth=2020-01-01T00:00:00\n\
             number_eligible_relays=2\nminimum_percent_eligible_relays=60\nnumber_consensus_relays=2\n\
             percent_eligible_relays=100\nminimum_number_eligible_relays=1\n\
             recent_measurement_attempt_count=3\nrecent_measurement_failure_count=1\n\
             recent_measurements_excluded_old_count=0\n=====\n\
             node_id=${} bw=31250 nick=relay1 time=2020-01-01T00:00:00 success=1 error_misc=0 conclusive=1\n\
             node_id=${} bw=10000 nick=relay171 time=2020-01-01T00:00:00 success=1 error_misc=0 conclusive=1\n",
            "01".repeat(20),
            "AB".repeat(20)
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_small_part_of_the_network_does_not_vote() {
        let mut few = file(vec![line(1)]);
        few.network_relays = 10;
        let text = few.to_text().unwrap();
        assert!(text.ends_with(" vote=0 under_min_report=1\n"));
        assert!(text.contains("percent_eligible_relays=10\n"));
    }

    #[test]
    fn documents_that_tor_would_refuse_are_not_written() {
        assert_eq!(file(vec![line(1), line(1)]).to_text(), Err(BandwidthFileError::Duplicate([1; 20])));
        for nickname in ["", "has space", "line\nbreak", "abcdefghijklmnopqrst"] {
            let bad = Line { nickname: nickname.into(), ..line(1) };
            assert!(matches!(file(vec![bad]).to_text(), Err(BandwidthFileError::Nickname(_))));
        }
        assert_eq!(Line { capacity: Rate(3), ..line(1) }.weight(), 1);
    }

    #[test]
    fn calendar_days_are_right_at_the_edges() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(iso(unix), text);
        }
    }
}
