//! The parts that are compared, each with its keys in a scenario and the nodes that must upgrade.

use tidegate_data::consensus::Consensus;

/// A part, added to vanilla Tor alone.
#[derive(Clone, Copy, Debug)]
pub struct ComparedPart {
    /// Its name, which is also that of its system.
    pub name: &'static str,
    /// Description for readers, with the parts that it needs.
    pub about: &'static str,
    /// Keys of its `[[system]]`.
    pub(super) keys: &'static str,
    /// Nodes that must upgrade for the simulated effect.
    pub(crate) upgrade: Upgrade,
    /// Where this is stated.
    pub source: &'static str,
    /// Effect on the guards and exits of a stream.
    pub(crate) paths: Paths,
}

/// Effect on the guards and exits of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paths {
    /// They are those of the baseline.
    Same,
    /// Streams use two guards.
    TwoGuards,
    /// Relays have other weights; the adversary's share of the weight follows its capacity.
    Reweighed,
}

/// Nodes that must upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    /// Each relay decides alone, and only its own traffic changes.
    EachRelay,
    /// Both ends of a connection between relays.
    PairsOfRelays,
    /// Every relay of a circuit.
    AllRelays,
    /// Both ends of a circuit.
    ClientsAndExits,
    /// All relays, and the directory authorities.
    RelaysAndAuthorities,
    /// It is deployed.
    Nobody,
}

impl Upgrade {
    /// In words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Upgrade::EachRelay => "each relay, alone",
            Upgrade::PairsOfRelays => "pairs of relays",
            Upgrade::AllRelays => "all relays of a circuit",
            Upgrade::ClientsAndExits => "clients and exits",
            Upgrade::RelaysAndAuthorities => "authorities and relays",
            Upgrade::Nobody => "nobody: deployed",
        }
    }

    /// The share of relays that upgrade in the simulation.
    pub(super) fn share_of_relays(self, consensus: &Consensus) -> f64 {
        match self {
            Upgrade::EachRelay
            | Upgrade::PairsOfRelays
            | Upgrade::AllRelays
            | Upgrade::RelaysAndAuthorities => 1.0,
            Upgrade::ClientsAndExits => {
                let exits = consensus.relays.iter().filter(|relay| relay.flags.exit()).count();
                exits as f64 / consensus.relays.len().max(1) as f64
            }
            Upgrade::Nobody => 0.0,
        }
    }
}

/// The first system: Tor before 2012.
pub(crate) const BASE: &str = "vanilla";

/// The parts in the order of tables.
pub const PARTS: &[ComparedPart] = &[
    ComparedPart {
        name: "ewma",
        about: "EWMA: quiet circuits first",
        keys: "scheduler = \"ewma\"",
        upgrade: Upgrade::EachRelay,
        source: "circuitmux_ewma.c of tor: a relay orders its own circuits",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "kist",
        about: "KIST with EWMA: writes limited to what the kernel can send",
        keys: "channel-scheduler = \"kist\"\nscheduler = \"ewma\"",
        upgrade: Upgrade::EachRelay,
        source: "scheduler_kist.c of tor: a relay limits its own writes",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "vegas",
        about: "congestion control of circuits by delay",
        keys: "control = \"vegas\"",
        upgrade: Upgrade::ClientsAndExits,
        source: "proposal 324: client and exit negotiate it",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "conflux",
        about: "Conflux (least latency) with Vegas: two linked circuits",
        keys: "control = \"vegas\"\nconflux = \"min-latency\"",
        upgrade: Upgrade::ClientsAndExits,
        source: "proposal 329: client and exit link the circuits",
        paths: Paths::TwoGuards,
    },
    ComparedPart {
        name: "pctcp",
        about: "PCTCP: a TCP connection per circuit",
        keys: "transport = \"pctcp\"",
        upgrade: Upgrade::PairsOfRelays,
        source: "docs/switching.md: both ends of a connection are upgraded, clients too",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "quic",
        about: "QUIC: a stream per circuit",
        keys: "transport = \"quic\"",
        upgrade: Upgrade::PairsOfRelays,
        source: "docs/switching.md: both ends of a connection are upgraded, clients too",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "switching",
        about: "active circuit switching with EWMA, at all relays",
        keys: "scheduler = \"ewma\"\nswitching = \"connection\"\nswitch = { everywhere = true }",
        upgrade: Upgrade::PairsOfRelays,
        source: "docs/switching.md: the other end of the connection takes part in a move",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "predictor",
        about: "PredicTor: relays plan rates and tell their neighbours",
        keys: "control = \"predictor\"",
        upgrade: Upgrade::AllRelays,
        source: "docs/predictor.md: every relay of a circuit exchanges trajectories with its neighbours",
        paths: Paths::Same,
    },
    ComparedPart {
        name: "flashflow",
        about: "FlashFlow: weights from measurements under full load",
        keys: "balance = \"flashflow\"\nflashflow = { seconds = 5, sockets = 30 }",
        upgrade: Upgrade::RelaysAndAuthorities,
        source: "docs/flashflow.md: a team measures relays for the authorities, and relays take part",
        paths: Paths::Reweighed,
    },
    ComparedPart {
        name: "tor",
        about: "tor as this consensus configures it, without Conflux",
        keys: "of-consensus = true",
        upgrade: Upgrade::Nobody,
        source: "parameters of the consensus",
        paths: Paths::Same,
    },
];

/// The `[[system]]` tables of the baseline and of all parts.
pub(super) fn systems() -> String {
    let table = |(name, keys): (&str, &str)| format!("\n[[system]]\nname = \"{name}\"\n{keys}\n");
    let parts = PARTS.iter().map(|part| (part.name, part.keys));
    std::iter::once((BASE, "")).chain(parts).map(table).collect()
}
