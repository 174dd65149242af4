//! Measured download times, for comparison with runs.
//!
//! Sources are the yearly OnionPerf summary of neverenough-sec2021 (`torperf-2019.json`) and OnionPerf's analysis
//! files.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::document::{DataError, Document, quote, timestamp};

/// Sizes that Tor's benchmark clients download: 50 KiB, 1 MiB and 5 MiB.
pub const SIZES: [u64; 3] = [50 << 10, 1 << 20, 5 << 20];

/// Download times by size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// One entry per measured size, ascending.
    pub downloads: Vec<Download>,
    /// Times to build a circuit, seconds, ascending; empty if unknown.
    pub circuit_build_s: Vec<f64>,
    /// Times from request to first byte of the response, seconds, ascending.
    ///
    /// Empty if unknown.
    pub round_trip_s: Vec<f64>,
    /// Results of the requests, if known.
    pub requests: Option<Requests>,
    /// First and last time of the measurements, in seconds since 1970, if known.
    pub period: Option<[u64; 2]>,
}

/// Numbers of requests by result, over all sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// All requests.
    pub made: u64,
    /// Requests that timed out.
    pub timed_out: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// Times of successful downloads of one size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Download {
    /// Downloaded bytes.
    pub bytes: u64,
    /// Times to the first byte, seconds, ascending; empty if unknown.
    pub ttfb_s: Vec<f64>,
    /// Times to the last byte, seconds, ascending.
    pub ttlb_s: Vec<f64>,
}

/// The `q`-quantile of ascending numbers; `None` for an empty slice.
///
/// Interpolates linearly between the two nearest numbers (type 7, the default of R and NumPy).
///
/// # Panics
/// If `q` is outside `[0, 1]`.
pub fn quantile(ascending: &[f64], q: f64) -> Option<f64> {
    assert!((0.0..=1.0).contains(&q), "a quantile is between 0 and 1");
    let last = ascending.len().checked_sub(1)?;
    let at = q * last as f64;
    let below = at.floor() as usize;
    let (low, high) = (ascending[below], ascending[(below + 1).min(last)]);
    Some(low + (high - low) * (at - below as f64))
}

/// A part of the year of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// The whole year.
    Whole,
    /// January to June.
    FirstHalf,
    /// July to December.
    SecondHalf,
}

/// Whether the document is an analysis of OnionPerf or tgentools.
pub(crate) fn is_analysis(document: &Document) -> bool {
    let text = document.text();
    let is = |kind: &str| text.contains(kind);
    text.trim_start().starts_with('{') && (is("\"onionperf\"") || is("\"tgen\"")) && !is_summary(document)
}

/// Whether the document is a yearly summary.
pub(crate) fn is_summary(document: &Document) -> bool {
    document.text().trim_start().starts_with('{') && document.text().contains("\"download_times\"")
}

/// Checks and sorts measurements. `onion` downloads from onion services were left out.
pub(crate) fn check(document: &Document, mut measured: Measured, onion: u64) -> Result<Measured, DataError> {
    if onion > 0 && measured.requests.is_some_and(|requests| requests.made == 0) {
        let cause = format!("holds only downloads from onion services ({onion})");
        return Err(document.error(cause, "give measurements of public servers"));
    }
    measured.downloads.retain(|download| !download.ttlb_s.is_empty());
    if measured.downloads.is_empty() {
        let of = measured.requests.map_or(String::new(), |requests| {
            let Requests { made, timed_out, failed } = requests;
            format!(": {timed_out} of {made} requests timed out, {failed} failed")
        });
        let cause = format!("does not hold any successful download{of}");
        return Err(document.error(cause, "give a file with measurements"));
    }
    measured.downloads.sort_by_key(|download| download.bytes);
    for download in &mut measured.downloads {
        let of = format!("of a download of {} bytes", download.bytes);
        sort(document, &mut download.ttfb_s, &format!("first byte {of}"))?;
        sort(document, &mut download.ttlb_s, &format!("last byte {of}"))?;
    }
    sort(document, &mut measured.circuit_build_s, "time to build a circuit")?;
    sort(document, &mut measured.round_trip_s, "round-trip time")?;
    Ok(measured)
}

/// Parses JSON. Errors have the line and column from serde.
pub(crate) fn json<'a, T: Deserialize<'a>>(document: &'a Document) -> Result<T, DataError> {
    serde_json::from_str(document.text()).map_err(|error| {
        let text = error.to_string();
        // The message of the document names the place.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let cause = format!("is not the expected JSON: {}", text.strip_suffix(&place).unwrap_or(&text));
        DataError {
            line: Some(error.line()),
            column: Some(error.column()),
            ..document.error(cause, "fetch the file again")
        }
    })
}

/// A value of JSON, or its default for `null`.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A value that some versions write as a number, and others as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// A number; none for other text.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Ok(match Option::<Written>::deserialize(from)? {
        Some(Written::Whole(number)) => Some(number as f64),
        Some(Written::Number(number)) => Some(number),
        Some(Written::Text(text)) => text.parse().ok(),
        None => None,
    })
}

/// A name; the number of a circuit is one.
fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Written>::deserialize(from)?.map(|written| match written {
        Written::Whole(number) => number.to_string(),
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    }))
}

fn sort(document: &Document, seconds: &mut [f64], what: &str) -> Result<(), DataError> {
    if let Some(bad) = seconds.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
        let cause = format!("the {what} is {bad} s, which is not a duration");
        return Err(document.error(cause, "remove this measurement, or fetch the file again"));
    }
    seconds.sort_by(f64::total_cmp);
    Ok(())
}

#[derive(Deserialize)]
struct Year {
    download_times: BTreeMap<String, Vec<f64>>,
    #[serde(default)]
    circuit_build_times: Vec<f64>,
    #[serde(default)]
    circuit_rtt: Vec<f64>,
    #[serde(default)]
    daily_counts: BTreeMap<String, Day>,
}

#[derive(Deserialize)]
struct Day {
    requests: u64,
    timeouts: u64,
    failures: u64,
}

/// Keeps the values of a part. `before_july` is the share of the values before July.
fn keep(values: &mut Vec<f64>, part: Part, before_july: f64) {
    let cut = (values.len() as f64 * before_july).round() as usize;
    match part {
        Part::Whole => {}
        Part::FirstHalf => values.truncate(cut),
        Part::SecondHalf => drop(values.drain(..cut)),
    }
}

/// Reads a yearly summary, or a part of its year.
///
/// The summary lacks times of day but lists its values in order of time. The daily counts say how many values precede
/// July.
///
/// # Errors
/// If the document is not such a summary, or does not hold any successful download.
pub fn summary(document: &Document, part: Part) -> Result<Measured, DataError> {
    let mut year: Year = json(document)?;
    let done = |days: &mut dyn Iterator<Item = (&String, &Day)>| -> u64 {
        days.map(|(_, day)| day.requests.saturating_sub(day.timeouts.saturating_add(day.failures))).sum()
    };
    // Days have the form `2019-06-30`.
    let is_before_july = |day: &String| day.get(5..7).is_some_and(|month| month < "07");
    let first = done(&mut year.daily_counts.iter().filter(|(day, _)| is_before_july(day)));
    let before_july = first as f64 / done(&mut year.daily_counts.iter()).max(1) as f64;
    for values in year.download_times.values_mut() {
        keep(values, part, before_july);
    }
    keep(&mut year.circuit_build_times, part, before_july);
    keep(&mut year.circuit_rtt, part, before_july);
    match part {
        Part::Whole => {}
        Part::FirstHalf => year.daily_counts.retain(|day, _| is_before_july(day)),
        Part::SecondHalf => year.daily_counts.retain(|day, _| !is_before_july(day)),
    }
    let mut downloads = Vec::new();
    for (bytes, ttlb_s) in year.download_times {
        let bytes = bytes.parse().map_err(|_| {
            document.error(format!("the size {} is not a number of bytes", quote(&bytes)), "correct it")
        })?;
        downloads.push(Download { bytes, ttfb_s: Vec::new(), ttlb_s });
    }
    let sum = |count: fn(&Day) -> u64| year.daily_counts.values().map(count).fold(0, u64::saturating_add);
    let requests = Requests {
        made: sum(|day| day.requests),
        timed_out: sum(|day| day.timeouts),
        failed: sum(|day| day.failures),
    };
    let mut measured = Measured {
        downloads,
        circuit_build_s: year.circuit_build_times,
        round_trip_s: year.circuit_rtt,
        requests: (!year.daily_counts.is_empty()).then_some(requests),
        period: None,
    };
    for day in year.daily_counts.keys() {
        measured.date(timestamp(&format!("{day} 00:00:00")).map(|time| time as f64));
    }
    check(document, measured, 0)
}

#[derive(Deserialize)]
struct Analysis {
    data: BTreeMap<String, Host>,
    #[serde(default, deserialize_with = "number")]
    version: Option<f64>,
    /// What `onionperf filter` did, by the filtered things.
    #[serde(default)]
    filters: BTreeMap<String, Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Host {
    tgen: TGen,
    /// `null` if OnionPerf lacked the log of tor.
    #[serde(default, deserialize_with = "or_default")]
    tor: Tor,
}

#[derive(Deserialize)]
struct TGen {
    #[serde(default)]
    streams: BTreeMap<String, Stream>,
    /// The downloads of versions 1 and 2, before tgen 1.0.
    #[serde(default)]
    transfers: BTreeMap<String, Transfer>,
}

#[derive(Default, Deserialize)]
struct Tor {
    #[serde(default)]
    circuits: BTreeMap<String, Circuit>,
    #[serde(default)]
    streams: BTreeMap<String, TorStream>,
}

/// A stream as tor's control port reports it.
#[derive(Deserialize)]
struct TorStream {
    #[serde(default, deserialize_with = "name")]
    circuit_id: Option<String>,
    /// The application's address and port.
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    unix_ts_end: Option<f64>,
}

/// Seconds by which tgen's and tor's end of one stream may differ, as in OnionPerf's visualisation.
const SAME_END_S: f64 = 150.0;

fn port_of(endpoint: Option<&str>) -> Option<&str> {
    endpoint?.rsplit(':').next()
}

impl Tor {
    /// The circuit of a download, found by its local port and its end.
    fn circuit(&self, local: Option<&str>, end: Option<f64>) -> Option<&Circuit> {
        let (port, end) = (port_of(local)?, end?);
        let of_port = self.streams.values().filter(|stream| port_of(stream.source.as_deref()) == Some(port));
        let mut same =
            of_port.filter(|stream| stream.unix_ts_end.is_some_and(|at| (at - end).abs() < SAME_END_S));
        same.find_map(|stream| self.circuits.get(stream.circuit_id.as_ref()?))
    }

    /// Whether OnionPerf's visualisation shows a download. Of filtered analyses it shows those on a known circuit that
    /// is not filtered out.
    fn shows(&self, filtered: bool, local: Option<&str>, end: Option<f64>) -> bool {
        self.circuit(local, end).map_or(!filtered, |circuit| !circuit.filtered_out)
    }
}

#[derive(Deserialize)]
struct Circuit {
    buildtime_seconds: Option<f64>,
    /// `onionperf filter` excludes the circuit from statistics.
    #[serde(default)]
    filtered_out: bool,
}

#[derive(Deserialize)]
struct Stream {
    #[serde(default)]
    is_success: bool,
    #[serde(default)]
    stream_info: Fate,
    #[serde(default)]
    transport_info: Transport,
    #[serde(default)]
    unix_ts_end: Option<f64>,
    #[serde(default)]
    elapsed_seconds: Elapsed,
    #[serde(default)]
    time_info: TimeInfo,
}

#[derive(Default, Deserialize)]
struct Elapsed {
    /// Seconds until this number of bytes had arrived; `null` if they did not.
    #[serde(default, deserialize_with = "or_default")]
    payload_bytes_recv: BTreeMap<String, Option<f64>>,
}

#[derive(Default, Deserialize)]
struct TimeInfo {
    /// Microseconds, mostly as text; -1 if the byte did not arrive.
    #[serde(default, rename = "usecs-to-first-byte-recv", deserialize_with = "number")]
    first_byte: Option<f64>,
    #[serde(default, rename = "usecs-to-last-byte-recv", deserialize_with = "number")]
    last_byte: Option<f64>,
}

/// The size and the result of a stream.
#[derive(Default, Deserialize)]
struct Fate {
    #[serde(default)]
    error: Option<String>,
    #[serde(default, deserialize_with = "number")]
    recvsize: Option<f64>,
}

/// The ends of a stream, as `name:address:port`.
#[derive(Default, Deserialize)]
struct Transport {
    #[serde(default)]
    remote: Option<String>,
    #[serde(default)]
    local: Option<String>,
}

#[derive(Deserialize)]
struct Transfer {
    #[serde(default, deserialize_with = "number")]
    filesize_bytes: Option<f64>,
    #[serde(default)]
    is_success: bool,
    #[serde(default)]
    error_code: Option<String>,
    #[serde(default)]
    endpoint_remote: Option<String>,
    #[serde(default)]
    endpoint_local: Option<String>,
    #[serde(default)]
    unix_ts_end: Option<f64>,
    #[serde(default)]
    elapsed_seconds: TransferTimes,
}

#[derive(Default, Deserialize)]
struct TransferTimes {
    first_byte: Option<f64>,
    last_byte: Option<f64>,
}

/// Whether an end of a stream is an onion service.
pub(crate) fn is_onion(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.split(':').any(|part| part.ends_with(".onion")))
}

impl Requests {
    /// Counts a request by tgen's error; `None` or `NONE` is success.
    fn count(&mut self, success: bool, error: Option<&str>) {
        self.made += 1;
        if !success {
            // tgen: TIMEOUT (the request took too long) and STALLOUT (no byte arrived for too long).
            let timed_out = matches!(error, Some("TIMEOUT" | "STALLOUT"));
            *(if timed_out { &mut self.timed_out } else { &mut self.failed }) += 1;
        }
    }
}

impl Measured {
    /// Takes a download of version 1 or 2.
    fn take_transfer(&mut self, transfer: &Transfer, requests: &mut Requests) {
        requests.count(transfer.is_success, transfer.error_code.as_deref());
        let TransferTimes { first_byte, last_byte } = &transfer.elapsed_seconds;
        let (true, Some(last)) = (transfer.is_success, last_byte) else { return };
        self.take(transfer.filesize_bytes.unwrap_or(0.0) as u64, *first_byte, *last);
    }

    /// Takes a successful stream of version 3 or 4, which counts for each size that it reached.
    fn take_stream(&mut self, stream: &Stream) {
        // The time may be missing, and -1 means that the byte did not arrive.
        let seconds = |us: Option<f64>| us.filter(|us| *us >= 0.0).map(|us| us / 1e6);
        let first = seconds(stream.time_info.first_byte);
        for bytes in SIZES {
            let times = &stream.elapsed_seconds.payload_bytes_recv;
            if let Some(Some(last)) = times.get(&bytes.to_string()) {
                self.take(bytes, first, *last);
            }
        }
        // OnionPerf can fetch other sizes, too (`--tgen-transfer-size`).
        let whole = stream.stream_info.recvsize.map(|bytes| bytes as u64);
        if let Some(bytes) = whole.filter(|bytes| *bytes > 0 && !SIZES.contains(bytes))
            && let Some(last) = seconds(stream.time_info.last_byte)
        {
            self.take(bytes, first, last);
        }
    }

    /// Extends the period to a time in seconds since 1970.
    pub(crate) fn date(&mut self, time: Option<f64>) {
        let Some(time) = time.filter(|time| *time > 0.0).map(|time| time as u64) else { return };
        let [first, last] = self.period.unwrap_or([time; 2]);
        self.period = Some([first.min(time), last.max(time)]);
    }

    /// Takes a download with its times in seconds.
    pub(crate) fn take(&mut self, bytes: u64, first_byte: Option<f64>, last_byte: f64) {
        let known = self.downloads.iter().position(|download| download.bytes == bytes);
        let at = known.unwrap_or_else(|| {
            self.downloads.push(Download { bytes, ..Download::default() });
            self.downloads.len() - 1
        });
        self.downloads[at].ttlb_s.push(last_byte);
        self.downloads[at].ttfb_s.extend(first_byte);
    }
}

/// The latest version of OnionPerf's analyses that is known (4.0 in July 2024).
const LATEST: f64 = 4.0;

/// Reads an OnionPerf analysis of version 1 to 4.
///
/// As at Tor Metrics since 2020, the time until the first 50 KiB (1 MiB) of a stream counts as a download of that size.
/// Downloads from onion services do not count: they take six relays and cannot be compared with downloads through exits.
/// Circuits that `onionperf filter` excludes do not count either, nor do the downloads on them.
///
/// # Errors
/// If the document is not such an analysis, or does not hold any successful download.
pub(crate) fn analysis(document: &Document) -> Result<Measured, DataError> {
    let analysis: Analysis = json(document)?;
    if let Some(version) = analysis.version.filter(|version| *version >= LATEST + 1.0) {
        let cause =
            format!("is of version {version} of OnionPerf's analyses; versions 1 to {LATEST} are known");
        return Err(document.error(cause, "analyse the logs with an earlier OnionPerf"));
    }
    let filtered = analysis.filters.get("tor/circuits").is_some_and(|filters| !filters.is_empty());
    let mut measured = Measured::default();
    let mut requests = Requests { made: 0, timed_out: 0, failed: 0 };
    let mut onion = 0;
    for Host { tgen, tor } in analysis.data.values() {
        for transfer in tgen.transfers.values() {
            measured.date(transfer.unix_ts_end);
            if is_onion(transfer.endpoint_remote.as_deref()) {
                onion += 1;
            } else if tor.shows(filtered, transfer.endpoint_local.as_deref(), transfer.unix_ts_end) {
                measured.take_transfer(transfer, &mut requests);
            }
        }
        for stream in tgen.streams.values() {
            measured.date(stream.unix_ts_end);
            if is_onion(stream.transport_info.remote.as_deref()) {
                onion += 1;
            } else if tor.shows(filtered, stream.transport_info.local.as_deref(), stream.unix_ts_end) {
                requests.count(stream.is_success, stream.stream_info.error.as_deref());
                if stream.is_success {
                    measured.take_stream(stream);
                }
            }
        }
        let circuits = tor.circuits.values().filter(|circuit| !circuit.filtered_out);
        measured.circuit_build_s.extend(circuits.filter_map(|circuit| circuit.buildtime_seconds));
    }
    measured.requests = Some(requests);
    check(document, measured, onion)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::formats::DOWNLOADS;

    fn read_text(text: &str) -> Result<Measured, DataError> {
        DOWNLOADS.read(Path::new("x.json"), &Document::new("x.json", text)?)
    }

    #[test]
    fn quantiles_interpolate() {
        let numbers = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&numbers, 0.0), Some(1.0));
        assert_eq!(quantile(&numbers, 0.5), Some(3.0));
        assert_eq!(quantile(&numbers, 1.0), Some(8.0));
        assert_eq!(quantile(&numbers, 0.9), Some(4.0 + 4.0 * 0.7000000000000002));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_year_of_downloads_is_read() {
        let measured = read_text(
            r#"{"download_times": {"1048576": [3, 2.5], "51200": [1.5]}, "circuit_build_times": [0.5],
                "daily_counts": {"a": {"requests": 5, "timeouts": 1, "failures": 0},
                                 "b": {"requests": 7, "timeouts": 0, "failures": 2}}}"#,
        )
        .unwrap();
        assert_eq!(measured.downloads[0].bytes, 51_200);
        assert_eq!(measured.downloads[1].ttlb_s, [2.5, 3.0]);
        assert_eq!(measured.requests, Some(Requests { made: 12, timed_out: 1, failed: 2 }));
    }

    #[test]
    fn a_year_has_halves() {
        let day = |name: &str, requests: u32, timeouts: u32| {
            format!("\"{name}\": {{\"requests\": {requests}, \"timeouts\": {timeouts}, \"failures\": 0}}")
        };
        let days = [day("2019-06-30", 4, 1), day("2019-07-01", 1, 0)].join(", ");
        let text =
            format!("{{\"download_times\": {{\"51200\": [1, 2, 3, 4]}}, \"daily_counts\": {{{days}}}}}");
        let document = Document::new("x.json", text).unwrap();
        let part = |part| summary(&document, part).unwrap().downloads[0].ttlb_s.clone();
        // Three of the four successful requests were before July.
        assert_eq!((part(Part::FirstHalf), part(Part::SecondHalf)), (vec![1.0, 2.0, 3.0], vec![4.0]));
    }

    #[test]
    fn an_onionperf_analysis_is_read() {
        let measured = read_text(
            r#"{"type": "onionperf", "version": "3.0", "data": {"op": {
                "tgen": {"streams": {
                  "1": {"is_success": true, "time_info": {"usecs-to-first-byte-recv": "700000"},
                        "elapsed_seconds": {"payload_bytes_recv": {"51200": 1.0, "1048576": 2.5}}},
                  "2": {"is_success": false}}},
                "tor": {"circuits": {"9": {"buildtime_seconds": 1.25}, "10": {}}}}}}"#,
        )
        .unwrap();
        let sizes: Vec<u64> = measured.downloads.iter().map(|download| download.bytes).collect();
        assert_eq!(sizes, [51_200, 1_048_576]);
        assert_eq!((measured.downloads[0].ttfb_s[0], measured.downloads[0].ttlb_s[0]), (0.7, 1.0));
        assert_eq!(measured.circuit_build_s, [1.25]);
        assert_eq!(measured.requests.unwrap().failed, 1);
    }

    #[test]
    fn numbers_may_be_text_and_values_may_be_null() {
        let of = |stream: &str| {
            read_text(&format!(
                r#"{{"type": "onionperf", "version": 3.0, "data": {{"op": {{"tor": null, "tgen": {{"streams": {{"1": {stream}}}}}}}}}}}"#
            ))
        };
        let good = r#"{"is_success": true, "time_info": {"usecs-to-first-byte-recv": 700000},
            "elapsed_seconds": {"payload_bytes_recv": {"51200": 1.0, "1048576": null}}}"#;
        let measured = of(good).unwrap();
        assert_eq!((measured.downloads.len(), measured.downloads[0].ttfb_s[0]), (1, 0.7));
        let later = r#"{"type": "onionperf", "version": "5.0", "data": {}}"#;
        assert!(read_text(later).unwrap_err().cause.contains("is of version 5"));
        let negative = good.replace("1.0", "-1.0");
        assert!(of(&negative).unwrap_err().cause.contains("last byte of a download of 51200 bytes is -1 s"));
        let late = of(r#"{"is_success": false, "stream_info": {"error": "TIMEOUT"}}"#).unwrap_err();
        assert!(late.cause.ends_with("1 of 1 requests timed out, 0 failed"), "{late}");
        let bom = Document::new("x.json", "\u{feff}{\"download_times\": {\"51200\": [1]}}").unwrap();
        assert_eq!(DOWNLOADS.read(Path::new("x.json"), &bom).unwrap().downloads[0].ttlb_s, [1.0]);
    }

    #[test]
    fn analyses_of_versions_1_and_2_are_read() {
        let transfer = |fields: &str| format!("{{\"filesize_bytes\": 51200, {fields}}}");
        let done = |first: f64, last: f64, from: &str| {
            transfer(&format!(
                "\"is_success\": true, \"error_code\": \"NONE\", \"endpoint_remote\": \"{from}:443\",
                 \"elapsed_seconds\": {{\"first_byte\": {first}, \"last_byte\": {last}}}"
            ))
        };
        let public = [done(1.2, 1.4, "a.example:192.0.2.7"), done(0.8, 1.0, "a.example:192.0.2.7")];
        let late = transfer("\"is_success\": false, \"error_code\": \"TIMEOUT\"");
        let broken = transfer("\"is_success\": false, \"error_code\": \"AUTH\"");
        let service = done(2.8, 3.0, "abc.onion:0.0.0.0");
        let analysis = |transfers: &[&String]| {
            let transfers: Vec<String> =
                transfers.iter().enumerate().map(|(at, transfer)| format!("\"{at}\": {transfer}")).collect();
            read_text(&format!(
                "{{\"type\": \"onionperf\", \"version\": \"2.0\", \"data\": {{\"op\": {{
                 \"tgen\": {{\"transfers\": {{{}}}}}, \"tor\": {{\"circuits\": {{\"1\": {{\"buildtime_seconds\": 0.4}}}}}}}}}}}}",
                transfers.join(", ")
            ))
        };
        let measured = analysis(&[&public[0], &public[1], &late, &broken, &service]).unwrap();
        let [download] = measured.downloads.as_slice() else { panic!("{measured:?}") };
        assert_eq!((download.bytes, download.ttlb_s.as_slice()), (51_200, &[1.0, 1.4][..]));
        assert_eq!(
            (download.ttfb_s.as_slice(), measured.circuit_build_s.as_slice()),
            (&[0.8, 1.2][..], &[0.4][..])
        );
        assert_eq!(measured.requests, Some(Requests { made: 4, timed_out: 1, failed: 1 }));
        let refused = analysis(&[&service]).unwrap_err();
        assert!(refused.cause.contains("only downloads from onion services (1)"), "{refused}");
    }

    #[test]
    fn onion_services_and_filtered_circuits_do_not_count() {
        let stream = |remote: &str, port: u32, seconds: f64| {
            format!(
                r#"{{"is_success": true, "unix_ts_end": 1000, "elapsed_seconds": {{"payload_bytes_recv":
                {{"51200": {seconds}}}}}, "transport_info": {{"remote": "{remote}:443", "local": "localhost:127.0.0.1:{port}"}}}}"#
            )
        };
        let late = r#"{"is_success": false, "stream_info": {"error": "TIMEOUT"}}"#;
        let measured = read_text(&format!(
            r#"{{"type": "onionperf", "version": "3.1", "data": {{"op": {{
                "tgen": {{"streams": {{"1": {}, "2": {}, "3": {}, "4": {late}}}}},
                "tor": {{"circuits": {{"7": {{"buildtime_seconds": 0.5, "filtered_out": true}},
                                       "8": {{"buildtime_seconds": 0.7, "filtered_out": false}}}},
                         "streams": {{"1": {{"circuit_id": "8", "source": "127.0.0.1:71", "unix_ts_end": 1001}},
                                      "2": {{"circuit_id": "7", "source": "127.0.0.1:72", "unix_ts_end": 1001}}}}}}}}}}}}"#,
            stream("a.example:192.0.2.7", 71, 1.0),
            stream("a.example:192.0.2.7", 72, 2.0),
            stream("abc.onion:0.0.0.0", 73, 9.0),
        ))
        .unwrap();
        assert_eq!(
            (measured.downloads[0].ttlb_s.as_slice(), measured.circuit_build_s.as_slice()),
            (&[1.0][..], &[0.7][..])
        );
        assert_eq!(measured.requests, Some(Requests { made: 2, timed_out: 1, failed: 0 }));
    }

    #[test]
    fn filtered_analyses_count_downloads_on_known_circuits() {
        let of = |filters: &str, circuit: &str| {
            read_text(&format!(
                r#"{{"type": "onionperf", "version": "4.0", "filters": {{"tor/circuits": {filters}}}, "data": {{"op": {{
                    "tgen": {{"streams": {{
                      "1": {{"is_success": true, "unix_ts_end": 1000, "transport_info": {{"local": "localhost:127.0.0.1:71"}},
                             "elapsed_seconds": {{"payload_bytes_recv": {{"51200": 1.0}}}}}},
                      "2": {{"is_success": true, "unix_ts_end": 1000, "transport_info": {{"local": "localhost:127.0.0.1:72"}},
                             "elapsed_seconds": {{"payload_bytes_recv": {{"51200": 2.0}}}}}}}}}},
                    "tor": {{"circuits": {{"7": {{"buildtime_seconds": 0.5}}}},
                             "streams": {{"1": {{"circuit_id": {circuit}, "source": "127.0.0.1:71", "unix_ts_end": 1001}}}}}}}}}}}}"#
            ))
        };
        let times = |filters: &str, circuit: &str| of(filters, circuit).unwrap().downloads[0].ttlb_s.clone();
        for circuit in ["\"7\"", "7"] {
            assert_eq!(times("[]", circuit), [1.0, 2.0], "not filtered");
            assert_eq!(
                times(r#"[{"name": "include_fingerprints"}]"#, circuit),
                [1.0],
                "no circuit is known of one"
            );
        }
    }

    #[test]
    fn streams_of_other_sizes_are_read() {
        let measured = read_text(
            r#"{"type": "onionperf", "version": "3.0", "data": {"op": {"tgen": {"streams": {
                "1": {"is_success": true, "stream_info": {"recvsize": "10240"},
                      "time_info": {"usecs-to-first-byte-recv": "300000", "usecs-to-last-byte-recv": "500000"}},
                "2": {"is_success": true, "stream_info": {"recvsize": "51200"},
                      "time_info": {"usecs-to-first-byte-recv": "400000", "usecs-to-last-byte-recv": "900000"},
                      "elapsed_seconds": {"payload_bytes_recv": {"10240": 0.6, "51200": 0.9}}}}}}}}"#,
        )
        .unwrap();
        let download = |bytes, first, last| Download { bytes, ttfb_s: vec![first], ttlb_s: vec![last] };
        assert_eq!(measured.downloads, [download(10_240, 0.3, 0.5), download(51_200, 0.4, 0.9)]);
    }

    #[test]
    fn other_json_is_refused() {
        for (bad, cause) in [
            ("{}", "known format"),
            ("[1, 2]", "known format"),
            ("{\"download_times\": {\"51200\": [1, ", "JSON"),
            ("{\"download_times\": {\"many\": [1]}}", "size"),
            ("{\"download_times\": {\"51200\": [-1]}}", "duration"),
            ("{\"download_times\": {\"51200\": []}}", "any successful"),
            ("{\"type\": \"onionperf\", \"data\": {}}", "any successful"),
        ] {
            let error = read_text(bad).unwrap_err();
            assert!(error.cause.contains(cause), "{bad}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert!(read_text(&deep).is_err());
    }
}
