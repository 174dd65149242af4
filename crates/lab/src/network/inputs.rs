//! The data files that a scenario names, read once for all its runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidegate_data::consensus::{self, Consensus};
use tidegate_data::document::DataError;
use tidegate_data::geoip::{self, GeoIp};
use tidegate_data::latency::LatencyTable;
use tidegate_data::tgen;
use tidegate_data::torperf::{self, Measured};
use tidegate_data::{detect, open};
use tidegate_sim::markov;

use super::builtin;
use crate::input::InputError;
use crate::scenario::file::{File, Name};

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `[tor]`: the network status, the file's or the built-in model's.
    pub consensus: Option<Consensus>,
    /// `[tor]`: addresses to countries.
    pub geoip: Option<GeoIp>,
    /// Paths between places: `[tor]`'s `latency`, or `[underlay]`'s `file`.
    pub latency: Option<LatencyTable>,
    /// `[tor]`: measured downloads to show beside ours.
    pub compare: Option<Measured>,
    /// Markov models by name of the traffic.
    pub models: BTreeMap<String, Arc<markov::Model>>,
}

impl From<DataError> for InputError {
    fn from(error: DataError) -> InputError {
        let at = error.line.map(|line| (line, error.column.unwrap_or(1)));
        InputError { at, ..InputError::new(error.file, error.cause, error.cure) }
    }
}

impl Inputs {
    /// Reads everything that the scenario names.
    pub fn load(file: &File, folder: &Path) -> Result<Inputs, InputError> {
        let path = |name: &Name| folder.join(name.get_ref());
        let mut inputs = Inputs::default();
        if let Some(tor) = file.tor.as_ref().map(|tor| tor.get_ref()) {
            inputs.consensus = Some(match &tor.consensus {
                Some(name) => consensus::read(&open::open(&path(name))?)?,
                None => builtin::consensus(*tor.year.get_ref()),
            });
            if let Some(name) = &tor.geoip {
                inputs.geoip = Some(geoip::read(&open::open(&path(name))?)?);
            }
            if let Some(name) = &tor.latency {
                inputs.latency = Some(detect::latency(&path(name))?);
            }
            if let Some(name) = &tor.compare {
                inputs.compare = Some(torperf::read(&open::open(&path(name))?)?);
            }
        } else if let Some(name) = &file.underlay.file {
            inputs.latency = Some(detect::latency(&path(name))?);
        }
        for (name, traffic) in &file.traffic {
            if let (Some(streams), Some(packets)) = (&traffic.stream_model, &traffic.packet_model) {
                let read = |name: &Name| -> Result<markov::Chain, InputError> {
                    Ok(chain(tgen::read(&open::open(&path(name))?)?))
                };
                let model = markov::Model { streams: read(streams)?, packets: read(packets)? };
                inputs.models.insert(name.clone(), Arc::new(model));
            }
        }
        Ok(inputs)
    }
}

/// tgen's model as the simulator walks it.
fn chain(model: tgen::Model) -> markov::Chain {
    let emission = |emission: &tgen::Emission| markov::Emission {
        observation: match emission.observation {
            tgen::Observation::ToServer => markov::Observation::ToServer,
            tgen::Observation::ToOrigin => markov::Observation::ToOrigin,
            tgen::Observation::End => markov::Observation::End,
        },
        weight: emission.weight,
        delay: match emission.delay {
            tgen::Delay::Normal { location, scale } => markov::Delay::Normal { location, scale },
            tgen::Delay::LogNormal { location, scale } => markov::Delay::LogNormal { location, scale },
            tgen::Delay::Exponential { rate } => markov::Delay::Exponential { rate },
            tgen::Delay::Pareto { scale, shape } => markov::Delay::Pareto { scale, shape },
            tgen::Delay::Uniform { low, high } => markov::Delay::Uniform { low, high },
        },
    };
    let states = model.states.iter().map(|state| markov::State {
        transitions: state.transitions.clone(),
        emissions: state.emissions.iter().map(emission).collect(),
    });
    markov::Chain::new(states.collect(), model.start, model.ceiling)
}
