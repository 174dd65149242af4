//! Data of the speed test of August 2019, and hourly sets of relays.
//!
//! Source: Jansen, Johnson: On the Accuracy of Tor Bandwidth Estimation, PAM 2021.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::consensus::Identity;
use crate::document::{DataError, Document, quote};
use crate::torperf::json;

/// A relay's advertised bandwidth, bytes/s: the smaller of its limit and its observed bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advertised {
    /// Before the test, which loaded every relay for a day.
    pub before: u64,
    /// After the test.
    pub after: u64,
    /// Its share of the consensus weight before and after.
    pub weights: [f64; 2],
}

#[derive(Deserialize)]
struct Difference {
    advbw: Pair,
    #[serde(default)]
    weight: Shares,
}

/// Shares; a missing or `null` share is zero.
#[derive(Default, Deserialize)]
struct Shares {
    before: Option<f64>,
    after: Option<f64>,
}

#[derive(Deserialize)]
struct Pair {
    before: u64,
    after: u64,
}

fn identity(document: &Document, text: &str) -> Result<Identity, DataError> {
    let bad = || document.error(format!("{} is not a relay's fingerprint", quote(text)), "correct it");
    Identity::from_hex(text).ok_or_else(bad)
}

/// Reads `speedtest.diffs.json`.
///
/// # Errors
/// If the JSON or a fingerprint is malformed.
pub(crate) fn advertised(document: &Document) -> Result<BTreeMap<Identity, Advertised>, DataError> {
    let relays: BTreeMap<Cow<'_, str>, Difference> = json(document)?;
    relays
        .iter()
        .map(|(name, Difference { advbw: Pair { before, after }, weight })| {
            let weights = [weight.before, weight.after].map(Option::unwrap_or_default);
            Ok((identity(document, name)?, Advertised { before: *before, after: *after, weights }))
        })
        .collect()
}

/// Reads `relay-churn-*.json`: the relays of each consensus by its time, seconds since 1970.
///
/// # Errors
/// If the JSON, an hour or a fingerprint is malformed.
pub(crate) fn hours(document: &Document) -> Result<BTreeMap<u64, Vec<Identity>>, DataError> {
    let hours: BTreeMap<Cow<'_, str>, Vec<Cow<'_, str>>> = json(document)?;
    hours
        .iter()
        .map(|(hour, relays)| {
            let seconds = hour.parse::<f64>().ok().filter(|seconds| (0.0..1e12).contains(seconds));
            let seconds = seconds
                .ok_or_else(|| document.error(format!("{} is not a time", quote(hour)), "correct it"))?;
            let relays = relays.iter().map(|name| identity(document, name)).collect::<Result<_, _>>()?;
            Ok((seconds as u64, relays))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "000A10D43011EA4928A35F610405F92B4433B4DC";

    fn document(text: String) -> Document {
        Document::new("f", text).unwrap()
    }

    #[test]
    fn advertised_bandwidths_are_read() {
        let text = format!(
            "{{\"{NAME}\": {{\"weight\": {{\"before\": 0.1, \"after\": 0.2}}, \"advbw\": {{\"before\": 5, \"after\": 7}}}}}}"
        );
        let read = advertised(&document(text.clone())).unwrap();
        assert_eq!(
            read.into_values().collect::<Vec<_>>(),
            [Advertised { before: 5, after: 7, weights: [0.1, 0.2] }]
        );
        let error = advertised(&document(text.replace("000A", "00"))).unwrap_err().to_string();
        assert!(error.contains("not a relay's fingerprint"), "{error}");
        assert!(advertised(&document("{}}".into())).is_err());
    }

    #[test]
    fn hours_are_read_in_order() {
        let text = format!("{{\"7200.0\": [\"{NAME}\"], \"3600.0\": []}}");
        let read = hours(&document(text)).unwrap();
        assert_eq!(
            read.iter().map(|(hour, relays)| (*hour, relays.len())).collect::<Vec<_>>(),
            [(3600, 0), (7200, 1)]
        );
        let error = hours(&document("{\"noon\": []}".into())).unwrap_err().to_string();
        assert!(error.contains("not a time"), "{error}");
    }
}
