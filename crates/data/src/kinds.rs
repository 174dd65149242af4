//! Kinds of files, by their contents: a refusal says what a file is, and which command reads it.
//!
//! A new kind is one line of `KINDS`. The order matters: specific kinds come first.

#[cfg(test)]
mod tests;

use crate::document::{DataError, Document};
use crate::{consensus, gml, graphml, latency_csv, relays, shadow_file, torperf, tpf};

/// A kind of file.
pub struct Kind {
    /// Its name, with the article.
    pub name: &'static str,
    /// The command or key that reads it.
    pub read_by: &'static str,
    detect: fn(&Document) -> bool,
}

/// Name of a kind that readers expect.
pub(crate) const CONSENSUS: &str = "a network consensus of Tor";
/// Name of a kind that readers expect.
pub const BANDWIDTH_FILE: &str = "a bandwidth file";
/// Name of a kind that readers expect.
pub(crate) const MICRODESCRIPTORS: &str = "a file of microdescriptors";
/// Name of a kind that readers expect.
pub const DESCRIPTORS: &str = "a file of server descriptors";
/// Name of a kind that readers expect.
pub(crate) const SHADOW: &str = "a configuration of Shadow";
/// Name of a kind that readers expect.
pub const GML: &str = "a network graph in GML";
/// Name of a kind that readers expect.
pub const SHADOW1_GRAPH: &str = "a network graph of Shadow 1";
/// Name of a kind that readers expect.
pub const MARKOV: &str = "a Markov model of tgen";
/// Name of a kind that readers expect.
pub const ACTIONS: &str = "an action graph of tgen";
/// Name of a kind that readers expect.
pub(crate) const ANALYSIS: &str = "an analysis of OnionPerf or tgentools";
/// Name of a kind that readers expect.
pub(crate) const SUMMARY: &str = "a yearly summary of Tor's downloads";
/// Name of a kind that readers expect.
pub(crate) const TPF: &str = "a `.tpf` file of Torperf";
/// Name of a kind that readers expect.
pub const STAGED: &str = "a `relayinfo_staging_*.json` of tornettools";
/// Name of a kind that readers expect.
pub(crate) const GEOIP: &str = "a `geoip` file of Tor";
/// Name of a kind that readers expect.
pub(crate) const PINGS: &str = "a table of WonderProxy";
/// Name of a kind that readers expect.
pub(crate) const RIPE: &str = "a table of country pairs of RIPE Atlas";
/// Name of a kind that readers expect.
pub(crate) const MATRIX: &str = "a matrix of numbers";
/// Name of a kind that readers expect.
pub(crate) const SPEED_TEST: &str = "a `speedtest.diffs.json`";
/// Name of a kind that readers expect.
pub(crate) const CHURN: &str = "a `relay-churn-*.json`";

/// Name of a kind that readers expect.
pub const SCENARIO: &str = "a scenario";
/// Name of a kind that readers expect.
pub const TORRC: &str = "a torrc of tor";
/// Name of a kind that readers expect.
pub const STAGED_USERS: &str = "a `userinfo_staging_*.json` of tornettools";

const ARCHIVE: &str = "`tidegate archive FILE` counts it";
const LATENCY: &str = "`latency = \"FILE\"` in a scenario's [tor] reads it";
const COMPARE: &str = "`compare = \"FILE\"` in a scenario's [tor] reads it";
const IMPORT: &str = "`tidegate import FILE --out SCENARIO.toml` reads it";
const CAPACITY: &str = "`capacity = \"FILE\"` in a scenario's [tor] reads it";

macro_rules! kind {
    ($name:expr, $read_by:expr, $detect:expr) => {
        Kind { name: $name, read_by: $read_by, detect: $detect }
    };
}

/// All kinds, specific ones first.
pub(crate) static KINDS: &[Kind] = &[
    // Its examples look like files of other kinds.
    kind!("a text in Markdown", "no command reads it; copy an example from it to a file", |d| has_line(
        d, "```"
    )),
    kind!("a vote of a directory authority", ARCHIVE, |d| consensus::looks_like(d)
        && has_line(d, "vote-status vote")),
    kind!(CONSENSUS, "`tidegate run SCENARIO --consensus FILE` reads it", consensus::looks_like),
    kind!("a file of detached signatures", ARCHIVE, |d| begins(d, "consensus-digest ")),
    kind!("a key certificate of a directory authority", ARCHIVE, |d| begins(
        d,
        "dir-key-certificate-version "
    )),
    kind!("a document of bridges", ARCHIVE, |d| has_line(d, "@type bridge-")
        || has_line(d, "router-digest ") && !has_line(d, "router-signature")),
    kind!(DESCRIPTORS, "`tidegate archive FILE`, or `capacity = \"FILE\"` in [tor], reads it", |d| begins(
        d, "router "
    )),
    kind!("a file of extra-infos", "`tidegate archive FILE` reads it", |d| begins(d, "extra-info ")),
    kind!(MICRODESCRIPTORS, "`microdescriptors = \"FILE\"` in a scenario's [tor] reads it", |d| begins(
        d,
        "onion-key"
    )),
    kind!(
        BANDWIDTH_FILE,
        "`tidegate flashflow compare FILE FILE`, or `paths.file` of a system, reads it",
        is_bandwidth_file
    ),
    kind!(SHADOW, IMPORT, shadow_file::looks_like),
    kind!(
        MARKOV,
        "`tidegate import FILE`, or `stream-model` and `packet-model` of [traffic], reads it",
        |d| graphml::looks_like(d) && [">emission<", ">transition<"].iter().any(|it| d.text().contains(it))
    ),
    kind!(SHADOW1_GRAPH, LATENCY, |d| graphml::looks_like(d) && names_attribute(d, "latency")),
    kind!(ACTIONS, IMPORT, |d| graphml::looks_like(d)
        && ["peers", "recvsize", "serverport", "sendsize", "socksproxy", "loglevel", "time"]
            .iter()
            .any(|key| names_attribute(d, key))),
    kind!(GML, LATENCY, gml::looks_like),
    kind!(SUMMARY, COMPARE, torperf::is_summary),
    kind!(STAGED, CAPACITY, |d| relays::is_json(d) && d.text().contains("\"bandwidth_capacity\"")),
    kind!(SPEED_TEST, "`tidegate flashflow schedule` reads it", |d| relays::is_json(d)
        && d.text().contains("\"advbw\"")),
    kind!(CHURN, "`tidegate flashflow schedule` reads it", is_churn),
    kind!(STAGED_USERS, "`tidegate import` names it", is_staged_users),
    kind!(ANALYSIS, COMPARE, torperf::is_analysis),
    kind!(TPF, COMPARE, tpf::looks_like),
    kind!(PINGS, LATENCY, latency_csv::is_wonderproxy),
    kind!(RIPE, LATENCY, latency_csv::is_ripe_countries),
    kind!(
        "a table of Tor Metrics",
        "no command reads it, since it has summaries by day; CollecTor has OnionPerf's files",
        |d| { begins(d, "date,") }
    ),
    kind!(GEOIP, "`geoip = \"FILE\"` in a scenario's [tor] reads it", is_geoip),
    kind!(
        TORRC,
        "`tidegate relay --import FILE` reads it, and `tidegate import FOLDER` with its network",
        is_torrc
    ),
    kind!(SCENARIO, "`tidegate run FILE` reads it", is_scenario),
    kind!(MATRIX, LATENCY, latency_csv::is_matrix),
];

/// The kind of a document, if it is known.
pub fn of(document: &Document) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| (kind.detect)(document))
}

/// Checks that a document is of one of these kinds, or of no known kind: then its reader knows best what is wrong.
///
/// # Errors
/// If it is of another kind. The message says of which, and which command reads it.
pub fn expect(document: &Document, contents: &str, kinds: &[&str]) -> Result<(), DataError> {
    match of(document) {
        Some(kind) if !kinds.contains(&kind.name) => Err(other(document, contents, kind)),
        _ => Ok(()),
    }
}

fn other(document: &Document, contents: &str, kind: &Kind) -> DataError {
    let cause = format!("is {}, and not {contents}", kind.name);
    document.error(cause, format!("give {contents}. About this file: {}", kind.read_by))
}

/// Whether the first line that is not an annotation begins with a keyword.
fn begins(document: &Document, keyword: &str) -> bool {
    let mut lines = document
        .lines()
        .map(|(_, line)| line)
        .filter(|line| !line.is_empty() && !line.starts_with(['@', '#']));
    lines.next().is_some_and(|line| line.starts_with(keyword))
}

fn has_line(document: &Document, start: &str) -> bool {
    document.lines().any(|(_, line)| line.starts_with(start))
}

/// Whether the first line is a Unix time, and a later one a pair of a bandwidth file.
fn is_bandwidth_file(document: &Document) -> bool {
    let digits = |line: &str| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    let is_pair = |part: &str| part.starts_with("node_id=") || part.starts_with("version=");
    // CollecTor puts an annotation first.
    let mut lines = document.lines().map(|(_, line)| line).skip_while(|line| line.starts_with('@'));
    lines.next().is_some_and(|line| digits(line.trim()))
        && lines.any(|line| line.split([' ', '\t']).any(is_pair))
}

/// Whether GraphML declares an attribute of this name.
fn names_attribute(document: &Document, name: &str) -> bool {
    let text = document.text();
    text.contains(&format!("attr.name=\"{name}\"")) || text.contains(&format!("attr.name='{name}'"))
}

/// Whether the JSON maps hours to lists of fingerprints.
fn is_churn(document: &Document) -> bool {
    let head: String = document.text().chars().filter(|c| !c.is_whitespace()).take(40).collect();
    let quoted = head.strip_prefix("{\"").and_then(|rest| rest.split_once('"'));
    quoted.is_some_and(|(seconds, rest)| seconds.parse::<f64>().is_ok() && rest.starts_with(":["))
}

/// Whether the JSON maps country codes to shares.
fn is_staged_users(document: &Document) -> bool {
    let head: String = document.text().chars().filter(|c| !c.is_whitespace()).take(12).collect();
    let bytes = head.as_bytes();
    bytes.starts_with(b"{\"")
        && bytes.get(4..6) == Some(b"\":")
        && bytes.get(6).is_some_and(u8::is_ascii_digit)
}

fn is_geoip(document: &Document) -> bool {
    let lines = document.lines().map(|(_, line)| line);
    let mut lines = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let Some(first) = lines.next() else { return false };
    let fields: Vec<&str> = first.split(',').collect();
    fields.len() == 3 && fields[..2].iter().all(|field| field.parse::<u32>().is_ok()) && fields[2].len() == 2
}

/// Whether a line sets an option that most files of tor set.
fn is_torrc(document: &Document) -> bool {
    const OPTIONS: [&str; 11] = [
        "%include",
        "ORPort",
        "SocksPort",
        "DirPort",
        "ControlPort",
        "ExitPolicy",
        "BandwidthRate",
        "TestingTorNetwork",
        "AuthoritativeDirectory",
        "ClientOnly",
        "ExitRelay",
    ];
    let first_words = document.lines().filter_map(|(_, line)| {
        let (word, value) = line.trim_start().split_once([' ', '\t'])?;
        (!value.trim().is_empty()).then(|| word.trim_start_matches(['+', '/']))
    });
    first_words.into_iter().any(|word| OPTIONS.iter().any(|option| option.eq_ignore_ascii_case(word)))
}

fn is_scenario(document: &Document) -> bool {
    has_line(document, "[[system]]") || has_line(document, "duration = \"")
}
