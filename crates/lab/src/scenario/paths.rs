//! Path selection: the table `paths` of a `[[system]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::Span;
use tidegate_sim::plan::paths::PathSelection;

use super::place::{Name, Placed};
use super::quantity::Timeout;

/// How a system's clients select paths. Users with a `path` of their own ignore it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct PathsFile {
    /// How relays are weighed: `tor` (consensus weights by position), `uniform`, `bandwidth-file` or `pinned`. Two more
    /// weigh as `tor` and compare several paths per circuit: `latency-aware` uses the one with the least delay between
    /// its relays; `congestion-aware` builds all and uses the one with the shortest queues.
    pub policy: Name,
    /// Paths that a client compares for each circuit: under `policy = "latency-aware"` (default 16), or
    /// `"congestion-aware"` (default 3).
    #[schemars(range(min = 2, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Placed<u32>>,
    /// Round trips that a client measures over each circuit under `policy = "congestion-aware"` (default 5).
    #[schemars(range(min = 2, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Placed<u32>>,
    /// The bandwidth file of `policy = "bandwidth-file"`, as directory authorities read it (kB/s by identity).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Name>,
    /// Guard, middle and exit of every circuit under `policy = "pinned"`.
    #[schemars(extend("x-length" = "a path has three relays: guard, middle, exit"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relays: Option<[Name; 3]>,
    /// Clients keep their first guard (tor's `UseEntryGuards`).
    pub keep_guard: bool,
    /// A path has at most one relay of a family (tor's `NodeFamily`).
    pub exclude_families: bool,
    /// A path has at most one relay of an IPv4 /16 (tor's `EnforceDistinctSubnets`).
    pub exclude_networks: bool,
    /// A client abandons a circuit that takes longer to build, and builds another: a time, or "never".
    pub(crate) build_timeout: Timeout,
    /// Learns the build timeout instead of using `build-timeout` (path-spec 2.4). Users at the same distance from the
    /// relays learn it together, whereas in tor each client learns from its own circuits.
    pub learn_build_timeout: bool,
    /// Lower bound of the learnt timeout (tor's `cbtmintimeout`, which was 1.5 s until 2021). Source: OnionPerf's circuits.
    pub least_build_timeout: Span,
}

impl Default for PathsFile {
    fn default() -> PathsFile {
        let PathSelection { keep_guard, exclude_families, exclude_networks, .. } = PathSelection::default();
        PathsFile {
            policy: Placed::nowhere("tor".to_owned()),
            compared: None,
            probes: None,
            file: None,
            relays: None,
            keep_guard,
            exclude_families,
            exclude_networks,
            build_timeout: Timeout::NEVER,
            learn_build_timeout: false,
            least_build_timeout: Span::from_millis(10),
        }
    }
}
