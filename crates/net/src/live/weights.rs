//! Measured weights of relays: FlashFlow's bandwidth file, from a path or from its coordinator.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_control::flashflow::bandwidth_file::read_weights;

use super::fetch::fetch;

/// Age at which a file counts no longer, seconds (tor's `MAX_MEASUREMENT_AGE`).
pub(crate) const MAX_AGE: u64 = 3 * 86_400;
/// Maximum weight of a relay that was not measured, bytes per second (tor's `DEFAULT_MAX_UNMEASURED_BW_KB`).
pub(crate) const UNMEASURED: u64 = 20_000;
/// Maximum length of a file, bytes: 300 for each of 100,000 relays.
const LONGEST: u64 = 30_000_000;

/// The weights of a bandwidth file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    /// Time of the file, seconds since 1970.
    pub measured: u64,
    /// Bytes per second, by fingerprint.
    pub relays: BTreeMap<[u8; 20], u64>,
}

impl Weights {
    /// Reads a bandwidth file.
    ///
    /// # Errors
    /// If it is malformed, older than three days, or from the future.
    pub(crate) fn read(text: &str, now: u64) -> Result<Weights, String> {
        let weights = read_weights(text).map_err(|why| why.to_string())?;
        let measured = text.lines().next().and_then(|line| line.trim().parse().ok());
        let measured = measured.ok_or("line 1 is not a time")?;
        let read = Weights {
            measured,
            relays: weights.into_iter().map(|(id, weight)| (id, weight.saturating_mul(1000))).collect(),
        };
        if !read.is_current(now) {
            return Err(format!(
                "the file is of {measured} (seconds since 1970), not of the last three days"
            ));
        }
        Ok(read)
    }

    /// Whether the file still counts.
    pub(crate) fn is_current(&self, now: u64) -> bool {
        // The clocks of a coordinator and a directory may differ.
        self.measured <= now + 3600 && now.saturating_sub(self.measured) <= MAX_AGE
    }

    /// The weight of a relay that says this bandwidth of itself.
    pub(crate) fn of(&self, fingerprint: &[u8; 20], said: u64) -> u64 {
        self.relays.get(fingerprint).copied().unwrap_or(said.min(UNMEASURED))
    }
}

/// Where a directory reads the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A bandwidth file.
    File(PathBuf),
    /// The status page of FlashFlow's coordinator.
    Coordinator(SocketAddr),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(f),
            Source::Coordinator(address) => write!(f, "http://{address}/v3bw"),
        }
    }
}

impl Source {
    /// Reads the weights.
    ///
    /// # Errors
    /// If they cannot be read, with the place and the cause.
    pub(crate) async fn weights(&self, now: u64) -> Result<Weights, String> {
        let text = match self {
            Source::File(path) => {
                let known = fs::metadata(path).map_err(|cause| format!("{self}: {cause}"))?;
                if !known.is_file() || known.len() > LONGEST {
                    return Err(format!("{self}: not a file of at most {LONGEST} bytes"));
                }
                fs::read_to_string(path).map_err(|cause| format!("{self}: {cause}"))?
            }
            Source::Coordinator(address) => {
                let (code, words, body) =
                    fetch(*address, "/v3bw", None).await.map_err(|cause| format!("{self}: {cause}"))?;
                if code != 200 {
                    return Err(format!("{self}: the coordinator answered {code} {words}"));
                }
                String::from_utf8(body).map_err(|_| format!("{self}: not UTF-8"))?
            }
        };
        Weights::read(&text, now).map_err(|cause| format!("{self}: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn file(time: u64) -> String {
        format!("{time}\nversion=1.5.0\n=====\nnode_id=${} bw=250\n", "AB".repeat(20))
    }

    #[test]
    fn a_relay_weighs_what_was_measured_and_others_little() {
        let weights = Weights::read(&file(NOW), NOW).unwrap();
        assert_eq!(weights.of(&[0xab; 20], 9_000_000), 250_000, "whatever it says of itself");
        assert_eq!(weights.of(&[1; 20], 9_000_000), UNMEASURED);
        assert_eq!(weights.of(&[1; 20], 500), 500);
    }

    #[test]
    fn old_future_and_malformed_files_are_refused() {
        assert!(Weights::read(&file(NOW - MAX_AGE), NOW).is_ok());
        for wrong in
            [file(NOW - MAX_AGE - 1), file(NOW + 3601), String::new(), file(NOW).replace("bw=", "b=")]
        {
            assert!(Weights::read(&wrong, NOW).is_err(), "{wrong}");
        }
    }
}
