//! The tables of file formats: name, detection and reader of each.
//!
//! There is one table for each kind of contents. A new reader is one file and one line here; detection and error
//! messages follow from the tables.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_control::flashflow::bandwidth_file::read_weights;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::markov::Chain;

use crate::consensus::{self, Consensus, Identity};
use crate::document::{DataError, Document};
use crate::geoip::{self, GeoIp};
use crate::latency::LatencyTable;
use crate::latency_graph::BareNumbers;
use crate::relays::{self, Capacity};
use crate::shadow_folder::Folder;
use crate::speed_test::{self, Advertised};
use crate::torperf::{self, Measured};
use crate::{gml, graphml, kinds, latency_csv, latency_graph, open, shadow_file, tgen, tpf};

/// Relays with their capacities, by identity.
pub(crate) type Relays = BTreeMap<Identity, Capacity>;

/// A file format for contents of type `T`.
pub struct Format<T: 'static> {
    /// Name in error messages.
    pub name: &'static str,
    detect: fn(&Document) -> bool,
    /// Gets the path too, for formats with a second file beside the first.
    read: fn(&Path, &Document) -> Result<T, DataError>,
}

/// All formats with the same contents, in order of detection.
pub struct Formats<T: 'static> {
    /// Contents, for error messages.
    pub contents: &'static str,
    /// The kinds of files that are in these formats, by [`kinds`].
    pub(crate) kinds: &'static [&'static str],
    formats: &'static [Format<T>],
}

/// Latencies between places.
pub static LATENCIES: Formats<LatencyTable> = Formats {
    contents: "latency data",
    kinds: &[kinds::GML, kinds::SHADOW1_GRAPH, kinds::SHADOW, kinds::PINGS, kinds::RIPE, kinds::MATRIX],
    formats: &[
        Format {
            name: "configuration of Shadow with its graph",
            detect: shadow_file::looks_like,
            read: |path, config| Folder::read(path, config)?.latencies(),
        },
        Format {
            name: "GraphML of Shadow 1",
            detect: graphml::looks_like,
            read: |_, graphml| latency_graph::table(graphml, &graphml::read(graphml)?, BareNumbers::Shadow1),
        },
        Format {
            name: "pings of WonderProxy",
            detect: latency_csv::is_wonderproxy,
            read: latency_csv::open_wonderproxy,
        },
        Format {
            name: "country pairs of RIPE Atlas",
            detect: latency_csv::is_ripe_countries,
            read: |_, csv| latency_csv::ripe_countries(csv),
        },
        Format {
            name: "a matrix of round-trip times",
            detect: latency_csv::is_matrix,
            read: |_, text| latency_csv::matrix(text),
        },
        Format {
            name: "GML of Shadow 2 or 3",
            detect: gml::looks_like,
            read: |_, gml| latency_graph::table(gml, &gml::read(gml)?, BareNumbers::Refused),
        },
    ],
};

/// Relays and their capacities in one file.
pub(crate) static RELAY_FILES: Formats<Relays> = Formats {
    contents: "a table of relays",
    kinds: &[kinds::STAGED, kinds::DESCRIPTORS, kinds::SHADOW],
    formats: &[
        Format {
            name: "`relayinfo_staging_*.json` of tornettools",
            detect: relays::is_json,
            read: |_, json| relays::capacities(json),
        },
        Format {
            name: "server descriptors",
            detect: relays::are_descriptors,
            read: |_, text| relays::descriptors(text),
        },
        Format {
            name: "a configuration of Shadow",
            detect: shadow_file::looks_like,
            read: |path, config| Ok(Folder::read(path, config)?.relays()?.relays),
        },
    ],
};

/// A network consensus.
pub static CONSENSUSES: Formats<Consensus> = Formats {
    contents: "a network consensus",
    kinds: &[kinds::CONSENSUS],
    formats: &[Format {
        name: "a consensus document of Tor",
        detect: consensus::looks_like,
        read: |_, text| consensus::read(text),
    }],
};

/// Weights of relays in kB/s, by identity.
pub static BANDWIDTH_FILES: Formats<BTreeMap<RelayId, u64>> = Formats {
    contents: "a bandwidth file",
    kinds: &[kinds::BANDWIDTH_FILE],
    formats: &[Format {
        name: "a bandwidth file of version 1.0 or later",
        detect: |_| false,
        read: |_, text| {
            read_weights(text.text()).map_err(|error| {
                text.error_at(
                    error.line,
                    error.cause,
                    "give a bandwidth file, as directory authorities read it",
                )
            })
        },
    }],
};

/// Countries of IP addresses.
pub static GEOIP: Formats<GeoIp> = Formats {
    contents: "countries of addresses",
    kinds: &[kinds::GEOIP],
    formats: &[Format { name: "Tor's `geoip` file", detect: |_| false, read: |_, csv| geoip::read(csv) }],
};

/// Measured download times.
pub static DOWNLOADS: Formats<Measured> = Formats {
    contents: "download times",
    kinds: &[kinds::ANALYSIS, kinds::SUMMARY, kinds::TPF],
    formats: &[
        Format {
            name: "an `onionperf.analysis.json`",
            detect: torperf::is_analysis,
            read: |_, json| torperf::analysis(json),
        },
        Format {
            name: "a yearly summary such as `torperf-2019.json`",
            detect: torperf::is_summary,
            read: |_, json| torperf::summary(json, torperf::Part::Whole),
        },
        Format {
            name: "a `.tpf` file of Torperf 1.0 or 1.1",
            detect: tpf::looks_like,
            read: |_, text| tpf::read(text),
        },
    ],
};

/// Markov models of traffic.
pub static TRAFFIC_MODELS: Formats<Chain> = Formats {
    contents: "a Markov model of traffic",
    kinds: &[kinds::MARKOV],
    formats: &[Format {
        name: "GraphML of tgen",
        detect: graphml::looks_like,
        read: |_, graphml| tgen::read(graphml),
    }],
};

/// Relays before and after the speed test of 2019.
pub static SPEED_TESTS: Formats<BTreeMap<Identity, Advertised>> = Formats {
    contents: "results of a speed test",
    kinds: &[kinds::SPEED_TEST],
    formats: &[Format {
        name: "`speedtest.diffs.json`",
        detect: |_| false,
        read: |_, json| speed_test::advertised(json),
    }],
};

/// Relays of each hour, by seconds since 1970.
pub static HOURLY_RELAYS: Formats<BTreeMap<u64, Vec<Identity>>> = Formats {
    contents: "relays by the hour",
    kinds: &[kinds::CHURN],
    formats: &[Format {
        name: "`relay-churn-*.json`",
        detect: |_| false,
        read: |_, json| speed_test::hours(json),
    }],
};

impl<T> Formats<T> {
    /// Opens and reads a file, plain, .xz or .gz.
    ///
    /// # Errors
    /// If the file cannot be opened, is in none of the formats, or is malformed.
    pub fn open(&self, path: &Path) -> Result<T, DataError> {
        self.read(path, &open::open(path)?)
    }

    /// Reads a document that was opened at `path`.
    ///
    /// # Errors
    /// If the document is in none of the formats, or is malformed.
    pub fn read(&self, path: &Path, document: &Document) -> Result<T, DataError> {
        (self.detect(document)?.read)(path, document)
    }

    /// Finds the format of a document. An only format is not checked: its reader knows best what is wrong.
    ///
    /// # Errors
    /// If the document is in none of the formats. The message lists them.
    pub fn detect(&self, document: &Document) -> Result<&Format<T>, DataError> {
        kinds::expect(document, self.contents, self.kinds)?;
        if let [only] = self.formats {
            return Ok(only);
        }
        self.formats.iter().find(|format| (format.detect)(document)).ok_or_else(|| {
            let names: Vec<&str> = self.formats.iter().map(|format| format.name).collect();
            let cause = format!("does not hold {} in a known format", self.contents);
            document.error(cause, format!("give one of: {}", names.join(", ")))
        })
    }
}

/// Opens a table of relays: a file of any format, or the folder of a Shadow configuration.
///
/// # Errors
/// If a file cannot be opened, is in no known format, or is malformed.
pub fn open_relays(path: &Path) -> Result<Relays, DataError> {
    if path.is_dir() { Ok(Folder::open(path)?.relays()?.relays) } else { RELAY_FILES.open(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_formats_are_detected_by_content() {
        let detect = |text: &str| {
            let document = Document::new("x", text).unwrap();
            LATENCIES.detect(&document).map(|format| format.name)
        };
        assert_eq!(detect("graph [ node [ id 0 ] ]"), Ok("GML of Shadow 2 or 3"));
        assert_eq!(detect("# comment\nCreator \"x\"\ngraph [ ]"), Ok("GML of Shadow 2 or 3"));
        assert_eq!(detect("<?xml version='1.0'?>\n<graphml>"), Ok("GraphML of Shadow 1"));
        assert_eq!(detect("source,destination,min,avg,max,mdev\n"), Ok("pings of WonderProxy"));
        assert_eq!(detect("cty1,cty2,rtt_cnt,rtt_avg\n"), Ok("country pairs of RIPE Atlas"));
        assert_eq!(detect("0 1.5\n1.5 0\n"), Ok("a matrix of round-trip times"));
        for none in ["hello", "<html>", "{}"] {
            let error = detect(none).unwrap_err();
            assert!(error.cure.contains("GML of Shadow 2 or 3"), "{error}");
        }
        assert!(detect("network-status-version 3\n").unwrap_err().cause.contains("a network consensus"));
        let servers = Document::new("x", "id,name,title,country\n").unwrap();
        let read = LATENCIES.detect(&servers).unwrap().read;
        assert!(read(Path::new("x"), &servers).unwrap_err().cause.contains("servers"));
    }
}
