//! The page of published systems: source, oracle tests and deviations, from the registries.

use std::fmt::Write as _;

use tidegate_control::balance::BALANCES;
use tidegate_control::paths::CONTROLLERS;
use tidegate_control::registry::{Entry, Origin};
use tidegate_proto::registry::{CHOICES, CONTROLS, SCHEDULERS, SPLITS};

use crate::registry::POLICIES;

/// Published systems of the simulator and the stream server: the key with its value, and the origin.
const OTHERS: &[(&str, Origin)] = &[
    (
        "tcp.congestion = \"reno\"",
        Origin { system: "Reno", source: "RFC 5681; Linux", oracles: KERNEL, deviation: "" },
    ),
    (
        "tcp.congestion = \"cubic\"",
        Origin { system: "CUBIC", source: "RFC 9438; Linux", oracles: KERNEL, deviation: "" },
    ),
    (
        "tcp.congestion = \"bbr\"",
        Origin {
            system: "BBR",
            source: "Cardwell and others, ACM Queue 2016; Linux (first version)",
            oracles: KERNEL,
            deviation: "a hash of the time draws the phase in which a cycle of gains begins",
        },
    ),
    (
        "tcp.congestion = \"bbr3\"",
        Origin {
            system: "BBR, third version",
            source: "draft-ietf-ccwg-bbr-06, July 2026; tcp_bbr.c of google/bbr, branch v3",
            oracles: &[
                "crates/sim/src/tcp/congestion/bbr3/tests.rs: gains_are_those_of_the_drafts_table",
                "crates/sim/src/tcp/congestion/bbr3/tests.rs: the_flight_at_a_loss_is_that_of_googles_code",
            ],
            deviation: "no ECN; a hash of the time draws the wait between probes; a loss found by a loss probe is not \
                        counted against a probe; segments that left together share the state of the last of them",
        },
    ),
    (
        "rule = \"one-tree\" (Q-Stream)",
        Origin {
            system: "SplitStream's rule",
            source: "Castro and others, SOSP 2003",
            oracles: &["crates/stream/src/forest/tests.rs: invariants_hold_for_any_operations"],
            deviation: "the rule alone: a viewer has children in one tree only; trees are built by Q-Stream's server",
        },
    ),
];

/// The kernel's TCP, between two network namespaces.
const KERNEL: &[&str] = &["crates/oracles/tests/kernel_tcp.rs: the_model_matches_the_kernels_goodput"];

/// A key with its value, and the published system that it selects.
type Selected = (String, &'static Origin);

/// Every published system: family by family, in the order of the registries.
fn all() -> Vec<Selected> {
    let mut all = of("scheduler", SCHEDULERS);
    all.extend(CHOICES.iter().map(|(key, origin)| ((*key).to_owned(), origin)));
    all.extend(of("control", CONTROLS));
    all.extend(of("conflux", SPLITS));
    all.extend(of("balance", BALANCES));
    all.extend(of("paths.policy", POLICIES));
    all.extend(of("controller", CONTROLLERS));
    all.extend(OTHERS.iter().map(|(key, origin)| ((*key).to_owned(), origin)));
    all
}

fn of<M>(key: &str, parts: &'static [Entry<M>]) -> Vec<Selected> {
    parts.iter().filter_map(|part| Some((format!("{key} = \"{}\"", part.name), part.origin?))).collect()
}

/// The page docs/systems.md.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for (key, origin) in all() {
        let tests = match origin.oracles {
            [] => "none".to_owned(),
            tests => tests.iter().map(|test| cited(test)).collect::<Vec<_>>().join(", "),
        };
        let title = origin.title();
        writeln!(page, "| {title} | `{key}` | {} | {tests} | {} |", origin.source, origin.deviation)
            .expect("writing to a string cannot fail");
    }
    page
}

/// `file: function` as a link.
fn cited(test: &str) -> String {
    let (file, function) = test.split_once(": ").expect("an oracle is a file and a function");
    format!("[`{function}`](../{file})")
}

const INTRODUCTION: &str = "\
# Published systems: sources, oracles, deviations

An oracle is a test against the authors' code, their worked numbers or their specification. A system without one is
called \"our reading of\" the published system: results about it say nothing about the original. Parts without an
origin are designs of this project and are not listed.

`tidegate keys --systems` generates this page from the registries; a test compares the two, and checks that every
oracle test exists.

| system | selected by | source | oracle tests | deviations |
|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_page_is_true() {
        let written =
            fs::read_to_string(root().join("docs/systems.md")).expect("docs/systems.md is readable");
        assert_eq!(written, page(), "regenerate it: tidegate keys --systems > docs/systems.md");
    }

    #[test]
    fn every_oracle_is_a_test() {
        for (key, origin) in all() {
            for oracle in origin.oracles {
                let (file, function) = oracle.split_once(": ").expect("an oracle is a file and a function");
                let text = fs::read_to_string(root().join(file));
                let text = text.unwrap_or_else(|error| panic!("{key}: {file}: {error}"));
                let at =
                    text.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{key}: no {oracle}"));
                let before = &text[..at];
                let since = before.rfind("\n}\n").unwrap_or(0);
                let is_test = before[since..].contains("#[test]") || before.contains("proptest! {");
                assert!(is_test, "{key}: {oracle} is not a test");
            }
        }
    }

    #[test]
    fn tables_of_balance_systems_name_readings_as_such() {
        let page = fs::read_to_string(root().join("docs/balance.md")).expect("docs/balance.md is readable");
        for part in BALANCES {
            let Some(origin) = part.origin.filter(|origin| origin.oracles.is_empty()) else { continue };
            for row in page.lines().filter(|line| line.starts_with('|') && line.contains(origin.system)) {
                assert!(
                    row.contains(&origin.title()),
                    "docs/balance.md does not say {}: {row}",
                    origin.title()
                );
            }
        }
    }
}
