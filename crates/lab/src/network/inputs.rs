//! The data files of a scenario, read once for all runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use tidegate_control::markov;
use tidegate_data::consensus::{Consensus, Flags, Flavour, Identity, RouterStatus};
use tidegate_data::country::Country;
use tidegate_data::document::{DataError, day};
use tidegate_data::formats::{self, CONSENSUSES, DOWNLOADS, GEOIP, LATENCIES, TRAFFIC_MODELS};
use tidegate_data::latency::LatencyTable;
use tidegate_data::relays::Capacity;
use tidegate_data::torperf::{self, Measured, Part, Requests};
use tidegate_data::{microdescriptor, open};

use super::{builtin, privcount};
use crate::input::InputError;
use crate::scenario::file::{Name, Placed, ScenarioFile};
use crate::scenario::users::UserFile;
use crate::traffic::PRIVCOUNT;

/// Seconds of a year.
const YEAR: u64 = 366 * 86_400;
/// Tor's first public network, October 2003. Earlier dates are simulated time: Shadow's and our runs begin in 2000.
const TOR_BEGAN: u64 = 1_064_966_400;

/// Contents of the data files.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `[tor]`: the consensus, from a file or the built-in model.
    pub consensus: Option<Consensus>,
    /// `[tor]`: families of relays.
    pub relatives: BTreeMap<Identity, BTreeSet<Identity>>,
    /// `[tor]`: known capacities of relays.
    pub capacities: Option<BTreeMap<Identity, Capacity>>,
    /// `[tor]`: countries of relays' addresses, from the geoip file.
    pub countries: BTreeMap<Ipv4Addr, Country>,
    /// Latencies between locations, from [tor] `latency` or [underlay] `file`.
    pub latency: Option<LatencyTable>,
    /// `[tor]`: measured downloads to compare with.
    pub compare: Option<Measured>,
    /// Source, date and outcomes of the measured downloads, in a sentence.
    pub compare_source: String,
    /// Measured downloads of January to June and July to December, if the file distinguishes them.
    pub compare_halves: Option<[Measured; 2]>,
    /// Markov models, by name of the traffic.
    pub models: BTreeMap<String, Arc<markov::Model>>,
    /// Notices for the user about missing data.
    pub notices: Vec<String>,
}

impl From<DataError> for InputError {
    fn from(error: DataError) -> InputError {
        let at = error.line.map(|line| (line, error.column.unwrap_or(1)));
        InputError { at, ..InputError::new(error.file, error.cause, error.cure) }
    }
}

impl Inputs {
    /// Reads all data files that the scenario names.
    pub(crate) fn load(file: &ScenarioFile, folder: &Path) -> Result<Inputs, InputError> {
        let path = |name: &Name| folder.join(name.get_ref());
        let mut inputs = Inputs::default();
        if let Some(tor) = file.tor.as_ref().map(|tor| tor.get_ref()) {
            inputs.capacities = tor.table().map(|name| formats::open_relays(&path(name))).transpose()?;
            inputs.consensus = Some(match (&tor.consensus, &inputs.capacities) {
                (Some(name), _) => CONSENSUSES.open(&path(name))?,
                (None, Some(table)) => consensus_of(table),
                (None, None) => builtin::consensus(*tor.year.get_ref()),
            });
            if let Some(name) = &tor.microdescriptors {
                inputs.read_families(&path(name))?;
            }
            if let Some(name) = &tor.geoip {
                let all = GEOIP.open(&path(name))?;
                let relays = inputs.consensus.iter().flat_map(|consensus| &consensus.relays);
                // The whole geoip table is large; only the relays' addresses are kept.
                let known = relays.filter_map(|relay| Some((relay.address, all.country(relay.address)?)));
                inputs.countries = known.collect();
            }
            if let Some(name) = &tor.latency {
                inputs.latency = Some(LATENCIES.open(&path(name))?);
            }
            if let Some(name) = &tor.compare {
                let document = open::open(&path(name))?;
                inputs.compare = Some(DOWNLOADS.read(&path(name), &document)?);
                inputs.date_measurements(document.name());
                let half = |part| torperf::summary(&document, part).ok();
                let halves = (half(Part::FirstHalf), half(Part::SecondHalf));
                inputs.compare_halves = match halves {
                    (Some(first), Some(second)) if first != second => Some([first, second]),
                    _ => None,
                };
            }
        } else if let Some(name) = &file.underlay.file {
            inputs.latency = Some(LATENCIES.open(&path(name))?);
        }
        for (name, traffic) in &file.traffic {
            if let (Some(streams), Some(packets)) = (&traffic.stream_model, &traffic.packet_model) {
                let read = |name: &Name| -> Result<markov::Chain, InputError> {
                    Ok(TRAFFIC_MODELS.open(&path(name))?)
                };
                let model = markov::Model { streams: read(streams)?, packets: read(packets)? };
                inputs.models.insert(name.clone(), Arc::new(model));
            }
        }
        let wants_model = |user: &Placed<UserFile>| user.traffic.as_str() == PRIVCOUNT;
        if file.user.iter().any(wants_model) && !file.traffic.contains_key(PRIVCOUNT) {
            inputs.models.insert(PRIVCOUNT.to_owned(), Arc::new(privcount::model()));
        }
        Ok(inputs)
    }

    /// Describes the measurements. Warns if they are more than a year older or younger than the network.
    fn date_measurements(&mut self, file: &str) {
        let Some(measured) = &self.compare else { return };
        let mut text = format!("Measured: {file}");
        let simulated = measured.period.is_some_and(|[_, last]| last < TOR_BEGAN);
        if simulated {
            text += ", in simulated time";
        } else if let Some([first, last]) = measured.period.map(|period| period.map(day)) {
            text += &if first == last { format!(", of {first}") } else { format!(", {first} to {last}") };
        }
        if let Some(Requests { made, timed_out, failed }) = measured.requests {
            text += &format!("; {timed_out} of {made} requests timed out, {failed} failed");
        }
        self.compare_source = text + ".";
        let sizes: Vec<u64> = measured.downloads.iter().map(|download| download.bytes).collect();
        if !sizes.is_empty() && !sizes.iter().any(|bytes| torperf::SIZES.contains(bytes)) {
            self.notices.push(format!(
                "{file}: holds downloads of {sizes:?} bytes; only those of 50 KiB, 1 MiB and 5 MiB ({:?} bytes) are compared",
                torperf::SIZES
            ));
        }
        if simulated {
            return;
        }
        // A table of relays lacks a date.
        let Some(network) =
            self.consensus.as_ref().map(|consensus| consensus.valid_after).filter(|time| *time > 0)
        else {
            return;
        };
        let Some([first, last]) = measured.period else { return };
        let apart = first.saturating_sub(network).max(network.saturating_sub(last));
        if apart > YEAR {
            let (first, last, network) = (day(first), day(last), day(network));
            let period = if first == last { first } else { format!("{first} to {last}") };
            self.notices.push(format!(
                "{file}: measured {period}, more than a year apart from the network of {network}; compare with measurements of its time"
            ));
        }
    }

    /// Reads the families declared in the microdescriptors.
    fn read_families(&mut self, path: &Path) -> Result<(), InputError> {
        let document = open::open(path)?;
        let relays = self.consensus.as_ref().map_or(&[][..], |consensus| &consensus.relays);
        let (read, families) = microdescriptor::families(&document, relays)?;
        let file = document.name();
        if families.missing > 0 {
            let (missing, all) = (families.missing, relays.len());
            self.notices
                .push(format!("{file}: lacks {missing} of {all} relays, so their families are unknown"));
        }
        if read.broken > 0 {
            let (broken, named) = (read.broken, read.named.join("; "));
            self.notices.push(format!("{file}: skipped {broken} broken microdescriptors: {named}"));
        }
        self.relatives = families.relatives;
        Ok(())
    }
}

/// Converts a table of relays with weights to a consensus.
///
/// Includes relays that ran at least half of the time, with the flags that they had at least half of the time.
/// Weights, which are shares, become kB/s that add up to the total capacity.
pub(crate) fn consensus_of(table: &BTreeMap<Identity, Capacity>) -> Consensus {
    let running = || table.iter().filter(|(_, relay)| relay.running >= 0.5 && relay.weight > 0.0);
    let carried = |relay: &Capacity| relay.capacity_bytes_per_s.min(relay.rate_bytes_per_s) as f64;
    let total: f64 = running().map(|(_, relay)| carried(relay)).sum();
    let shares: f64 = running().map(|(_, relay)| relay.weight).sum();
    let relay = |(number, (identity, known)): (usize, (&Identity, &Capacity))| {
        let flags = [("Guard", known.guard), ("Exit", known.exit)];
        let had = flags.into_iter().filter(|(_, share)| *share >= 0.5).map(|(flag, _)| flag);
        let nickname =
            if known.name.is_empty() { format!("relay{}", number + 1) } else { known.name.clone() };
        RouterStatus {
            nickname,
            identity: *identity,
            // Relays without an address get their own /16, so that none excludes another.
            address: known.address.unwrap_or(Ipv4Addr::from((number as u32 + 1) << 16 | 1)),
            or_port: 9001,
            flags: Flags::from_names(had.chain(["Fast", "Running", "Stable", "Valid"])),
            version: None,
            bandwidth: ((known.weight / shares * total / 1000.0).round() as u32).max(1),
            unmeasured: false,
            ports: None,
            microdescriptor: None,
        }
    };
    Consensus {
        flavour: Flavour::Microdesc,
        method: 31,
        valid_after: 0,
        known_flags: Vec::new(),
        params: BTreeMap::new(),
        relays: running().enumerate().map(relay).collect(),
        bandwidth_weights: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_data::torperf::Download;

    use super::*;
    use crate::export::EPOCH_UNIX_S;

    #[test]
    fn measurements_say_their_date_and_warn_a_year_apart() {
        let year = |year: u64| (year - 1970) * 365 * 86_400 + (year - 1969) / 4 * 86_400;
        for (network, apart) in [(2019, false), (2020, false), (2021, true), (2018, false), (2016, true)] {
            let requests = Some(Requests { made: 10, timed_out: 2, failed: 1 });
            let period = Some([year(2019), year(2019) + 300 * 86_400]);
            let mut inputs = Inputs {
                consensus: Some(builtin::consensus(2024)),
                compare: Some(Measured { requests, period, ..Measured::default() }),
                ..Inputs::default()
            };
            if let Some(consensus) = &mut inputs.consensus {
                consensus.valid_after = year(network) + 86_400;
            }
            inputs.date_measurements("x.json");
            let source = "Measured: x.json, 2019-01-01 to 2019-10-28; 2 of 10 requests timed out, 1 failed.";
            assert_eq!(inputs.compare_source, source);
            assert_eq!(inputs.notices.len(), usize::from(apart), "{network}: {:?}", inputs.notices);
        }
        let period = Some([EPOCH_UNIX_S, EPOCH_UNIX_S + 600]);
        let mut inputs = Inputs {
            consensus: Some(builtin::consensus(2024)),
            compare: Some(Measured { period, ..Measured::default() }),
            ..Inputs::default()
        };
        inputs.date_measurements("x.json");
        assert_eq!(inputs.compare_source, "Measured: x.json, in simulated time.");
        assert!(inputs.notices.is_empty(), "{:?}", inputs.notices);
        let download = |bytes| Download { bytes, ttlb_s: vec![1.0], ..Download::default() };
        for (sizes, noticed) in [(vec![12_345], true), (vec![12_345, 51_200], false)] {
            let downloads = sizes.into_iter().map(download).collect();
            let compare = Some(Measured { downloads, ..Measured::default() });
            let mut inputs = Inputs { compare, ..Inputs::default() };
            inputs.date_measurements("x.json");
            assert_eq!(inputs.notices.len(), usize::from(noticed), "{:?}", inputs.notices);
        }
    }
}
