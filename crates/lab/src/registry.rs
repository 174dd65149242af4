//! The registry of path policies: from the name in a system's `paths` table to the policy.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tidegate_control::registry::{Entry, find};
use tidegate_data::formats::BANDWIDTH_FILES;
use tidegate_sim::plan::paths::{self as policies, Policy, congestion_aware, latency_aware};

use crate::input::{InputError, SourceFile, suggest};
use crate::scenario::file::Placed;
use crate::scenario::paths::PathsFile;

/// Path policies by name. Adding one takes one line here.
pub(crate) const POLICIES: &[Entry<MakePolicy>] = &[
    Entry { name: "tor", schema: None, origin: None, make: |_, _, _| Ok(Arc::new(policies::Tor)) },
    Entry { name: "uniform", schema: None, origin: None, make: |_, _, _| Ok(Arc::new(policies::Uniform)) },
    Entry { name: "bandwidth-file", schema: None, origin: None, make: bandwidth_file },
    Entry { name: "pinned", schema: None, origin: None, make: pinned },
    Entry { name: "latency-aware", schema: None, origin: Some(&latency_aware::ORIGIN), make: latency },
    Entry {
        name: "congestion-aware",
        schema: None,
        origin: Some(&congestion_aware::ORIGIN),
        make: congestion,
    },
];

/// Builds a policy from a system's `paths` table. File names are relative to the folder.
pub(crate) type MakePolicy = fn(&PathsFile, &SourceFile, &Path) -> Result<Arc<dyn Policy>, InputError>;

fn bandwidth_file(
    paths: &PathsFile,
    source: &SourceFile,
    folder: &Path,
) -> Result<Arc<dyn Policy>, InputError> {
    let Some(name) = &paths.file else {
        let cause = "`policy = \"bandwidth-file\"` needs a `file`";
        return Err(source.error(paths.policy.span(), cause, "set `paths.file` to a bandwidth file"));
    };
    let path = folder.join(name.get_ref());
    let weights = BANDWIDTH_FILES.open(&path)?;
    Ok(Arc::new(policies::BandwidthFile { weights }))
}

fn pinned(paths: &PathsFile, source: &SourceFile, _: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let Some(relays) = &paths.relays else {
        let cause = "`policy = \"pinned\"` needs `relays`";
        return Err(source.error(paths.policy.span(), cause, "set `paths.relays` to guard, middle and exit"));
    };
    Ok(Arc::new(policies::Pinned(relays.each_ref().map(|name| name.get_ref().clone()))))
}

fn latency(paths: &PathsFile, _: &SourceFile, _: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let compared = paths.compared.as_deref().copied();
    let policy = policies::LatencyAware::default();
    Ok(Arc::new(policies::LatencyAware { compared: compared.unwrap_or(policy.compared) }))
}

fn congestion(paths: &PathsFile, _: &SourceFile, _: &Path) -> Result<Arc<dyn Policy>, InputError> {
    let given = |value: &Option<Placed<u32>>, default| value.as_deref().copied().unwrap_or(default);
    let policies::CongestionAware { compared, probes } = policies::CongestionAware::default();
    let (compared, probes) = (given(&paths.compared, compared), given(&paths.probes, probes));
    Ok(Arc::new(policies::CongestionAware { compared, probes }))
}

/// Builds the policy that a system's `paths` table names.
pub(crate) fn policy(
    paths: &PathsFile,
    source: &SourceFile,
    folder: &Path,
) -> Result<Arc<dyn Policy>, InputError> {
    let name = paths.policy.as_str();
    let part = find("policy", POLICIES, name).map_err(|unknown| {
        let cause = format!("unknown path policy `{name}`");
        source.error(paths.policy.span(), cause, suggest(name, &unknown.known))
    })?;
    let policy = (part.make)(paths, source, folder)?;
    let refused = |place: Option<Range<usize>>, key: &str, with: &str| match place {
        Some(place) => {
            let cause = format!("`{key}` has no effect with `policy = \"{name}\"`");
            Err(source.error(place, cause, format!("drop it, or use policy = {with}")))
        }
        None => Ok(()),
    };
    let comparison = policy.comparison();
    if comparison.is_none() {
        let place = paths.compared.as_ref().map(Placed::span);
        refused(place, "compared", "\"latency-aware\" or \"congestion-aware\"")?;
    }
    if comparison.is_none_or(|rule| rule.probes == 0) {
        refused(paths.probes.as_ref().map(Placed::span), "probes", "\"congestion-aware\"")?;
    }
    if name != "bandwidth-file" {
        refused(paths.file.as_ref().map(Placed::span), "file", "\"bandwidth-file\"")?;
    }
    if name != "pinned" {
        let first = paths.relays.as_ref().map(|[guard, ..]| guard.span());
        refused(first, "relays", "\"pinned\"")?;
    }
    Ok(policy)
}
