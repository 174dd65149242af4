//! Downloads in Torperf's `.tpf` format (CollecTor's `@type torperf 1.0` and `1.1`): a line of `KEY=VALUE` pairs each.

use crate::document::{DataError, Document, quote};
use crate::torperf::{self, Measured, Requests};

const CURE: &str = "give a `.tpf` file as CollecTor publishes it";

/// The lines of downloads, without annotations.
fn downloads(document: &Document) -> impl Iterator<Item = (usize, &str)> {
    document.lines().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('@'))
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

/// Whether the file says that it has this format, or its first download has a size or a start.
pub(crate) fn looks_like(document: &Document) -> bool {
    let says = document.text().trim_start().starts_with("@type torperf ");
    let first = downloads(document).next();
    says || first.is_some_and(|(_, line)| value(line, "FILESIZE").or(value(line, "START")).is_some())
}

/// Reads the downloads from public servers.
///
/// # Errors
/// If a line lacks its size or start, a value is not a number, or no download is successful.
pub(crate) fn read(document: &Document) -> Result<Measured, DataError> {
    let mut measured = Measured::default();
    let mut requests = Requests { made: 0, timed_out: 0, failed: 0 };
    let mut onion = 0;
    for (number, line) in downloads(document) {
        let seconds = |key: &str| {
            let text = value(line, key);
            text.map(str::parse::<f64>).transpose().map_err(|_| {
                let cause = format!("`{key}` is {}, not a number", quote(text.unwrap_or_default()));
                document.error_at(number, cause, CURE)
            })
        };
        let missing =
            |key: &str| document.error_at(number, format!("`{key}` is missing or not a number"), CURE);
        if torperf::is_onion(value(line, "ENDPOINTREMOTE")) {
            onion += 1;
            continue;
        }
        let bytes = value(line, "FILESIZE").and_then(|text| text.parse().ok());
        let bytes: u64 = bytes.ok_or_else(|| missing("FILESIZE"))?;
        let start = seconds("START")?.ok_or_else(|| missing("START"))?;
        measured.date(Some(start));
        requests.made += 1;
        // OnionPerf writes tgen's errors as `TGEN/TIMEOUT`.
        let late = |error: &str| error.ends_with("TIMEOUT") || error.ends_with("STALLOUT");
        if value(line, "DIDTIMEOUT") == Some("1") || value(line, "ERRORCODE").is_some_and(late) {
            requests.timed_out += 1;
            continue;
        }
        // A time is zero if it was not reached.
        let (first, last) = (seconds("DATARESPONSE")?, seconds("DATACOMPLETE")?);
        let Some(last) = last.filter(|last| *last > 0.0 && value(line, "ERRORCODE").is_none()) else {
            requests.failed += 1;
            continue;
        };
        measured.take(bytes, first.filter(|first| *first > 0.0).map(|first| first - start), last - start);
        // The times at which the hops were built, in seconds since the launch.
        let built = value(line, "BUILDTIMES").and_then(|times| times.rsplit(',').next()?.parse::<f64>().ok());
        measured.circuit_build_s.extend(built);
    }
    measured.requests = Some(requests);
    torperf::check(document, measured, onion)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::formats::DOWNLOADS;

    fn read_text(text: &str) -> Result<Measured, DataError> {
        DOWNLOADS.read(Path::new("x.tpf"), &Document::new("x.tpf", text)?)
    }

    #[test]
    fn downloads_time_outs_and_failures_are_read() {
        let line = |rest: &str| format!("FILESIZE=51200 START=1000.00 SOURCE=op {rest}\n");
        let text = "@type torperf 1.1\n".to_owned()
            + &line("BUILDTIMES=0.25,0.5,0.75 DATARESPONSE=1000.50 DATACOMPLETE=1001.25 DIDTIMEOUT=0")
            + "@type torperf 1.1\n"
            + &line("DATARESPONSE=0.0 DATACOMPLETE=0.0 DIDTIMEOUT=1")
            + &line("DATACOMPLETE=0.0 DIDTIMEOUT=0 ERRORCODE=TGEN/STALLOUT")
            + &line("DATACOMPLETE=0.0 DIDTIMEOUT=0")
            + &line("DATACOMPLETE=1009.0 ENDPOINTREMOTE=abc.onion:0.0.0.0:80");
        let measured = read_text(&text).unwrap();
        let [download] = measured.downloads.as_slice() else { panic!("{measured:?}") };
        assert_eq!(
            (download.bytes, &download.ttfb_s[..], &download.ttlb_s[..]),
            (51_200, &[0.5][..], &[1.25][..])
        );
        assert_eq!(measured.circuit_build_s, [0.75]);
        assert_eq!(measured.period, Some([1000, 1000]));
        assert_eq!(measured.requests, Some(Requests { made: 4, timed_out: 2, failed: 1 }));
        let error = read_text(&text.replace("DATACOMPLETE=1001.25", "DATACOMPLETE=x")).unwrap_err();
        assert!(error.line == Some(2) && error.cause.contains("not a number"), "{error}");
        assert!(read_text(&(line("") + "FILESIZE=x START=1\n")).unwrap_err().cause.contains("`FILESIZE`"));
        let error = read_text("@type torperf 1.1\nSOURCE=op START=1000.0\n").unwrap_err();
        assert!(error.line == Some(2) && error.cause.contains("`FILESIZE` is missing"), "{error}");
        let onion = line("DATACOMPLETE=1009.0 ENDPOINTREMOTE=abc.onion:0.0.0.0:80");
        assert!(read_text(&onion).unwrap_err().cause.contains("only downloads from onion services (1)"));
    }
}
