//! From a name in a scenario file to the part it stands for: one table per kind of part, one line per part.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tidegate_control::flashflow::bandwidth_file::read_weights;
use tidegate_proto::registry::{CONTROLS, SCHEDULERS};
use tidegate_sim::plan::paths::{self as policies, Policy};
use tidegate_sim::plan::{Control, Discipline, Ewma, Form, Sharing, Switching, Transport, kist};
use tidegate_sim::tcp::Congestion;

use crate::input::{InputError, Source, suggest};
use crate::scenario::file::{KistFile, PctcpFile, SwitchFile, SystemFile};
use crate::scenario::paths::PathsFile;

/// A name that stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Which kind of part was sought, and under which name.
    pub cause: String,
    /// What would help.
    pub cure: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.cure)
    }
}

/// Which connection carries a circuit between two relays.
const TRANSPORTS: &[(&str, MakeTransport)] = &[
    ("vanilla", |_, _| Transport::Vanilla),
    ("pctcp", |pctcp, beyond| match pctcp.connections_per_peer {
        0 => Transport::PerCircuit,
        connections => Transport::Threshold { connections, beyond },
    }),
];

/// Makes a transport from PCTCP's parameters.
type MakeTransport = fn(&PctcpFile, Sharing) -> Transport;

/// Which connection a circuit beyond PCTCP's threshold shares.
const SHARINGS: &[(&str, Sharing)] = &[("round-robin", Sharing::RoundRobin), ("by-class", Sharing::ByClass)];

/// When connections take cells from circuits; parameters come from the system's `kist` table.
const CHANNEL_SCHEDULERS: &[(&str, MakeChannelScheduler)] = &[
    ("vanilla", |_| None),
    ("kist", |kist| Some(kist::Parameters { interval: kist.interval.0, buffer_factor: kist.buffer_factor })),
];

/// Makes a channel scheduler from KIST's parameters.
type MakeChannelScheduler = fn(&KistFile) -> Option<kist::Parameters>;

/// How circuits move away from congested connections; parameters come from the system's `switch` table.
const SWITCHINGS: &[(&str, Option<Form>)] =
    &[("none", None), ("connection", Some(Form::Connection)), ("circuit", Some(Form::Circuit))];

/// How clients weigh relays; parameters come from the system's `paths` table.
const POLICIES: &[(&str, MakePolicy)] = &[
    ("tor", |_, _, _| Ok(Arc::new(policies::Tor))),
    ("uniform", |_, _, _| Ok(Arc::new(policies::Uniform))),
    ("bandwidth-file", bandwidth_file),
    ("pinned", pinned),
];

/// Makes a policy from a system's `paths` table; files count from the folder.
type MakePolicy = fn(&PathsFile, &Source, &Path) -> Result<Arc<dyn Policy>, InputError>;

fn bandwidth_file(paths: &PathsFile, source: &Source, folder: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let Some(name) = &paths.file else {
        let cause = "`policy = \"bandwidth-file\"` without a `file`";
        return Err(source.error(paths.policy.span(), cause, "name the bandwidth file"));
    };
    let path = folder.join(name.get_ref());
    let text = Source::read(&path)?;
    let weights = read_weights(&text.text).map_err(|error| InputError {
        at: Some((error.line, 1)),
        ..InputError::new(&text.file, error.cause, "give a file that directory authorities read")
    })?;
    Ok(Arc::new(policies::BandwidthFile { weights }))
}

fn pinned(paths: &PathsFile, source: &Source, _: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let Some(relays) = &paths.relays else {
        let cause = "`policy = \"pinned\"` without `relays`";
        return Err(source.error(paths.policy.span(), cause, "name guard, middle and exit"));
    };
    Ok(Arc::new(policies::Pinned(relays.each_ref().map(|name| name.get_ref().clone()))))
}

/// TCP's congestion control.
const CONGESTIONS: &[(&str, Congestion)] =
    &[("cubic", Congestion::Cubic), ("reno", Congestion::Reno), ("none", Congestion::None)];

/// The transport of this name, with PCTCP's parameters.
pub fn transport(name: &str, pctcp: &PctcpFile, beyond: Sharing) -> Result<Transport, Unknown> {
    find("transport", name, TRANSPORTS).map(|make| make(pctcp, beyond))
}

/// The form of switching of this name, with the system's parameters.
pub fn switching(name: &str, file: &SwitchFile) -> Result<Option<Switching>, Unknown> {
    let form = find("switching", name, SWITCHINGS)?;
    Ok(form.map(|form| Switching {
        form,
        gamma: file.gamma,
        alpha: file.alpha,
        beta: file.beta,
        sample_every: file.sample.0,
        rest: file.rest.0,
        connections: file.connections,
        everywhere: file.everywhere,
    }))
}

/// The rule of this name for circuits beyond PCTCP's threshold.
pub fn sharing(name: &str) -> Result<Sharing, Unknown> {
    find("sharing", name, SHARINGS)
}

/// The scheduler of this name, with the system's parameters.
pub fn scheduler(name: &str, system: &SystemFile) -> Result<Arc<dyn Discipline>, Unknown> {
    let make = find("scheduler", name, SCHEDULERS)?;
    Ok(if name == "ewma" { Arc::new(Ewma { half_life: system.half_life.0 }) } else { make() })
}

/// The channel scheduler of this name: `None` is tor's Vanilla.
pub fn channel_scheduler(name: &str, file: &KistFile) -> Result<Option<kist::Parameters>, Unknown> {
    find("channel scheduler", name, CHANNEL_SCHEDULERS).map(|make| make(file))
}

/// The control of this name, with the system's parameters.
pub fn control(name: &str, system: &SystemFile) -> Result<Arc<dyn Control>, Unknown> {
    let make = find("control", name, CONTROLS)?;
    Ok(if name == "predictor" { Arc::new(system.predictor.parameters()) } else { make() })
}

/// The policy that a system's `paths` table names.
pub fn policy(paths: &PathsFile, source: &Source, folder: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let make = find("policy", paths.policy.get_ref(), POLICIES)
        .map_err(|unknown| source.error(paths.policy.span(), unknown.cause, unknown.cure))?;
    make(paths, source, folder)
}

/// The TCP congestion control of this name.
pub fn congestion(name: &str) -> Result<Congestion, Unknown> {
    find("congestion control", name, CONGESTIONS)
}

/// The name of a TCP congestion control.
pub fn congestion_name(wanted: Congestion) -> &'static str {
    CONGESTIONS.iter().find(|(_, part)| *part == wanted).map_or("none", |(name, _)| name)
}

fn find<T: Copy>(kind: &str, name: &str, parts: &[(&str, T)]) -> Result<T, Unknown> {
    match parts.iter().find(|(known, _)| *known == name) {
        Some((_, part)) => Ok(*part),
        None => {
            let known: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
            Err(Unknown { cause: format!("there is no {kind} `{name}`"), cure: suggest(name, &known) })
        }
    }
}
