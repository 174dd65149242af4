//! Tables of latencies: WonderProxy's between cities, RIPE Atlas' between countries, and matrices (PlanetLab).
//!
//! All three hold round-trip times. A one-way delay is half of a round-trip time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tidegate_control::units::Span;

use crate::country::Country;
use crate::csv;
use crate::document::{DataError, Document, quote};
use crate::latency::{self, LatencyTable, Location, Routing, check_size};
use crate::open;

/// Largest plausible round-trip time, s. Larger values are errors of measurement or unit.
const MAX_RTT_S: f64 = 60.0;

/// Ping times of a server to itself below this, s, measure its loopback.
const LOOPBACK_S: f64 = 0.000_2;

/// Half a round-trip time; its deviation is split into two independent ones.
fn one_way(rtt_s: f64, deviation_s: f64) -> latency::Path {
    latency::Path {
        delay: Span::from_secs_f64(rtt_s / 2.0),
        jitter: Span::from_secs_f64(deviation_s * std::f64::consts::FRAC_1_SQRT_2),
        loss: 0.0,
    }
}

/// Whether the first line names these columns.
fn has_columns(document: &Document, wanted: &[&str]) -> bool {
    let columns: Vec<&str> = document.first_line().split(',').map(str::trim).collect();
    wanted.iter().all(|name| columns.contains(name))
}

const SERVERS: [&str; 3] = ["id", "title", "country"];

/// Whether the document is WonderProxy's pings or its table of servers.
pub(crate) fn is_wonderproxy(document: &Document) -> bool {
    has_columns(document, &["source", "destination", "avg"]) || has_columns(document, &SERVERS)
}

/// Whether the document is RIPE Atlas' country pairs.
pub(crate) fn is_ripe_countries(document: &Document) -> bool {
    has_columns(document, &["cty1", "cty2", "rtt_avg"])
}

/// Whether the document begins with a line of numbers.
pub(crate) fn is_matrix(document: &Document) -> bool {
    let words: Vec<&str> = document.first_line().split_whitespace().collect();
    words.len() > 1 && words.iter().all(|word| word.parse::<f64>().is_ok())
}

/// Reads WonderProxy's pings with the table of servers `servers*.csv` beside them.
pub(crate) fn open_wonderproxy(path: &Path, pings: &Document) -> Result<LatencyTable, DataError> {
    if has_columns(pings, &SERVERS) {
        return Err(pings.error("is the table of servers, without delays", "give the pings that go with it"));
    }
    wonderproxy(pings, &open::open(&servers_beside(path, pings)?)?)
}

fn servers_beside(path: &Path, pings: &Document) -> Result<PathBuf, DataError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let is_servers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let packed = name.strip_suffix(".xz").or(name.strip_suffix(".gz"));
        name.starts_with("servers") && packed.unwrap_or(&name).ends_with(".csv")
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_servers).collect();
    match (found.pop(), found.is_empty()) {
        (Some(servers), true) => Ok(servers),
        (one, _) => {
            let how_many = if one.is_some() { "more than one" } else { "no" };
            let cause = format!("needs one table of servers, but {how_many} `servers*.csv` is in its folder");
            Err(pings.error(cause, "put exactly one `servers*.csv` into the same folder"))
        }
    }
}

/// Reads WonderProxy's pings and their table of servers.
///
/// The columns are `source`, `destination`, `avg`, `mdev` (ms) and `id`, `title`, `country`.
///
/// Skips loopback pings and pings of servers outside the table. A pair that was measured in one direction counts for
/// both.
///
/// # Errors
/// If a table is malformed, a server or pair repeats, or a country is unknown.
pub fn wonderproxy(pings: &Document, servers: &Document) -> Result<LatencyTable, DataError> {
    let mut locations = Vec::new();
    let mut index = BTreeMap::new();
    let mut titles = BTreeSet::new();
    for row in csv::rows(servers, SERVERS)? {
        let [id, title, country] = row.values();
        let country = Country::from_name(country)
            .or_else(|| Country::from_code(country))
            .ok_or_else(|| row.fail(format!("{} is not a known country", quote(country))))?;
        if index.insert(id.to_owned(), locations.len()).is_some() {
            return Err(row.fail(format!("server {} repeats", quote(id))));
        }
        // Two servers in one city stay two locations.
        let name = if titles.insert(title.to_owned()) { title.to_owned() } else { format!("{title} {id}") };
        locations.push(Location {
            name,
            country: Some(country),
            city: Some(title.to_owned()),
            up: None,
            down: None,
        });
    }
    let n = locations.len();
    check_size(servers, n)?;
    let mut known = vec![None; n * n];
    for row in csv::rows(pings, ["source", "destination", "avg", "mdev"])? {
        let (rtt, deviation) = (milliseconds(&row, 2)?, milliseconds(&row, 3)?);
        let [source, destination, ..] = row.values();
        let (Some(&from), Some(&to)) = (index.get(source), index.get(destination)) else { continue };
        if from == to && rtt < LOOPBACK_S {
            continue;
        }
        if known[from * n + to].replace(one_way(rtt, deviation)).is_some() {
            return Err(row.fail(format!("the pair {source},{destination} repeats")));
        }
    }
    mirror(&mut known, n);
    LatencyTable::complete(pings, locations, known, Routing::Direct)
}

/// Reads RIPE Atlas' country pairs.
///
/// The columns are `cty1`, `cty2` and `rtt_avg` (ms); pairs are symmetric, with one row each.
///
/// Skips rows with codes that are not a country (`EU`, `Unknown`). Jitter is zero, because `rtt_std` is the spread
/// between probes and not over time.
///
/// # Errors
/// If the table is malformed or a pair repeats.
pub fn ripe_countries(document: &Document) -> Result<LatencyTable, DataError> {
    let mut pairs = BTreeMap::new();
    for row in csv::rows(document, ["cty1", "cty2", "rtt_avg"])? {
        let rtt = milliseconds(&row, 2)?;
        let [a, b, _] = row.values();
        let (Some(a), Some(b)) = (Country::from_code(a), Country::from_code(b)) else {
            continue;
        };
        if pairs.insert((a.min(b), a.max(b)), one_way(rtt, 0.0)).is_some() {
            return Err(row.fail(format!("the pair {a},{b} repeats")));
        }
    }
    let countries: BTreeSet<Country> = pairs.keys().flat_map(|(a, b)| [*a, *b]).collect();
    let countries: Vec<Country> = countries.into_iter().collect();
    let n = countries.len();
    check_size(document, n)?;
    let mut known = vec![None; n * n];
    for ((a, b), path) in pairs {
        let at = |country| countries.binary_search(&country).expect("taken from the pairs");
        known[at(a) * n + at(b)] = Some(path);
    }
    mirror(&mut known, n);
    let place = |country: &Country| Location {
        name: country.code().to_owned(),
        country: Some(*country),
        city: None,
        up: None,
        down: None,
    };
    LatencyTable::complete(document, countries.iter().map(place).collect(), known, Routing::Direct)
}

/// Reads a square matrix of round-trip times, ms (PlanetLab's NetLatency-Data).
///
/// Negative and empty values, and zeros off the diagonal, are missing measurements.
///
/// # Errors
/// If a value is not a number or the matrix is not square.
pub fn matrix(document: &Document) -> Result<LatencyTable, DataError> {
    let rows: Vec<(usize, Vec<&str>)> = document
        .lines()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| (number, line.split_whitespace().collect()))
        .collect();
    let n = rows.len();
    check_size(document, n)?;
    let mut known = vec![None; n * n];
    for (from, (line, row)) in rows.iter().enumerate() {
        if row.len() != n {
            let cause = format!("has {} numbers, but the matrix has {n} rows", row.len());
            return Err(document.error_at(*line, cause, "give a square matrix"));
        }
        for (to, text) in row.iter().enumerate() {
            let rtt_ms: f64 = match text.parse() {
                Ok(number) if number / 1e3 <= MAX_RTT_S => number,
                _ => {
                    let cause = format!("{} is not a round-trip time in milliseconds", quote(text));
                    return Err(document.error_at(*line, cause, "correct it"));
                }
            };
            if from != to && rtt_ms > 0.0 {
                known[from * n + to] = Some(one_way(rtt_ms / 1e3, 0.0));
            }
        }
    }
    mirror(&mut known, n);
    let place = |number: usize| Location {
        name: format!("node {number}"),
        country: None,
        city: None,
        up: None,
        down: None,
    };
    LatencyTable::complete(document, (1..=n).map(place).collect(), known, Routing::Direct)
}

/// Copies a path measured in one direction to the other.
fn mirror(known: &mut [Option<latency::Path>], n: usize) {
    for from in 0..n {
        for to in 0..from {
            let (one, other) = (from * n + to, to * n + from);
            (known[one], known[other]) = (known[one].or(known[other]), known[other].or(known[one]));
        }
    }
}

fn milliseconds<const N: usize>(row: &csv::Row<'_, N>, column: usize) -> Result<f64, DataError> {
    let seconds = row.number(column)? / 1e3;
    if seconds <= MAX_RTT_S {
        return Ok(seconds);
    }
    Err(row.fail(format!("{} ms is longer than a minute", row.values()[column])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Document {
        Document::new("table.csv", text).unwrap()
    }

    const SERVERS: &str = "id,name,title,country\n0,A,Alpha,Germany\n1,B,Beta,France\n2,C,Alpha,ES\n";

    #[test]
    fn cities_are_joined_with_their_servers() {
        let pings =
            "source,destination,min,avg,max,mdev\n0,0,0,0.03,0,0\n0,1,9,10,11,2\n1,2,1,8,1,0\n7,0,1,1,1,1\n";
        let table = wonderproxy(&text(pings), &text(SERVERS)).unwrap();
        let names: Vec<&str> = table.locations.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["Alpha", "Beta", "Alpha 2"]);
        assert_eq!(table.path(1, 0).delay, Span::from_millis(5), "mirrored");
        assert_eq!(table.path(0, 1).jitter, Span::from_secs_f64(0.001_414_213_562));
        assert_eq!(table.path(0, 2).delay, Span::from_millis(9), "over Beta");
        assert_eq!(
            table.path(0, 0).delay,
            Span::from_micros(2_500),
            "half the way to Beta, not the loopback"
        );
        assert_eq!(table.locations[2].country, Country::from_code("ES"));
    }

    #[test]
    fn bad_rows_are_refused_with_their_line() {
        let head = "source,destination,avg,mdev\n";
        for (bad, cause) in [
            ("0,1", "fields"),
            ("0,1,-3,0", "zero or more"),
            ("0,1,NaN,0", "zero or more"),
            ("0,1,1e9,0", "longer than"),
            ("0,1,x,0", "zero or more"),
        ] {
            let error = wonderproxy(&text(&format!("{head}{bad}\n")), &text(SERVERS)).unwrap_err();
            assert!(error.line == Some(2) && error.cause.contains(cause), "{bad}: {error}");
        }
        let twice = wonderproxy(&text(&format!("{head}0,1,5,0\n0,1,5,0\n")), &text(SERVERS)).unwrap_err();
        assert_eq!(twice.line, Some(3));
        let atlantis = text("id,title,country\n0,A,Atlantis\n");
        assert!(wonderproxy(&text(head), &atlantis).unwrap_err().cause.contains("Atlantis"));
    }

    #[test]
    fn countries_are_symmetric_and_unknown_codes_skipped() {
        let table = ripe_countries(&text("cty1,cty2,rtt_avg\nDE,FR,10\nEU,FR,3\nDE,DE,4\n")).unwrap();
        assert_eq!(table.locations.len(), 2);
        assert_eq!(table.path(1, 0).delay, Span::from_millis(5));
        assert_eq!(table.path(0, 0).delay, Span::from_millis(2));
        assert!(ripe_countries(&text("cty1,cty2,rtt_avg\nDE,FR,10\nFR,DE,10\n")).is_err());
    }

    #[test]
    fn matrices_are_square() {
        let table = matrix(&text("0\t10\t0\n10 0 4\n0 4 0\n")).unwrap();
        assert_eq!(table.path(0, 2).delay, Span::from_millis(7));
        assert_eq!(matrix(&text("0 1\n1\n")).unwrap_err().line, Some(2));
        assert_eq!(matrix(&text("0 x\n1 0\n")).unwrap_err().line, Some(1));
        assert!(matrix(&text("0 inf\n1 0\n")).is_err());
    }
}
