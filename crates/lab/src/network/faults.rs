//! Converts `[[fault]]` tables and churn to the faults of a plan.

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::plan::{Fault, FaultKind as Planned};

use super::hosts::Hosts;
use crate::input::{InputError, SourceFile};
use crate::scenario::file::{Name, ScenarioFile};
use crate::scenario::users::{ChurnFile, FaultFile, FaultKind};

/// The faults of a plan. Fails if a generated network lacks a host that a fault names.
pub(super) fn plan(
    file: &ScenarioFile,
    source: &SourceFile,
    hosts: &Hosts,
    seed: Seed,
) -> Result<Vec<Fault>, InputError> {
    let host = |name: &Name| {
        hosts.find(name.get_ref()).ok_or_else(|| {
            let cause = format!("this network has no host `{}`", name.get_ref());
            source.error(name.span(), cause, "generated relays have the names relay1, relay2, ...")
        })
    };
    let plan_one = |fault: &FaultFile| {
        // `check` has verified that the key is present.
        let named = |name: &Option<Name>| host(name.as_ref().expect("checked"));
        let between = || -> Result<(u32, u32), InputError> {
            let [a, b] = fault.between.as_ref().expect("checked");
            Ok((hosts.location(host(a)?), hosts.location(host(b)?)))
        };
        let kind = match fault.kind {
            FaultKind::Drop => {
                Planned::Drop { between: between()?, probability: fault.probability.expect("checked") }
            }
            FaultKind::Delay => Planned::Delay { between: between()?, extra: fault.extra.expect("checked") },
            FaultKind::Partition => Planned::Partition { between: between()? },
            FaultKind::LinkDown => Planned::LinkDown { host: named(&fault.host)? },
            FaultKind::Byzantine => {
                Planned::Byzantine { host: named(&fault.host)?, lie: fault.lie.expect("checked") }
            }
            FaultKind::HostDown => Planned::HostDown { host: named(&fault.host)? },
        };
        let until = fault.until.unwrap_or(file.duration);
        Ok(Fault { kind, from: Time::ZERO + fault.from, until: Time::ZERO + until })
    };
    let named = file.fault.iter().map(|fault| plan_one(fault.get_ref()));
    let churn = file.relay_churn.iter().flat_map(|churn| {
        hosts.relays().flat_map(|(host, _)| outages(churn.get_ref(), host, file.duration, seed))
    });
    named.chain(churn.map(Ok)).collect()
}

/// A relay's outages. Its initial state is up with the long-term share of time that it is up.
fn outages(churn: &ChurnFile, host: u32, duration: Span, seed: Seed) -> Vec<Fault> {
    let mut draws = seed.fork_index(host.into()).random();
    let (up, down) = (churn.up.as_secs_f64(), churn.down.as_secs_f64());
    let mut is_up = draws.unit() < up / (up + down);
    let (mut now, mut faults) = (Time::ZERO, Vec::new());
    while now < Time::ZERO + duration {
        let mean = if is_up { up } else { down };
        let until = now + Span::from_secs_f64(draws.exponential(mean));
        if !is_up {
            faults.push(Fault { kind: Planned::HostDown { host }, from: now, until });
        }
        (now, is_up) = (until, !is_up);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_up_as_long_as_they_should() {
        let churn = ChurnFile { up: Span::from_secs(300), down: Span::from_secs(100) };
        let all = |host| outages(&churn, host, Span::from_secs(100_000), Seed::root(1));
        let down: f64 = (0..20).flat_map(all).map(|fault| fault.until.since(fault.from).as_secs_f64()).sum();
        assert!((down / 2e6 - 0.25).abs() < 0.02, "{down}");
        assert_eq!(all(3), all(3));
        assert_ne!(all(3), all(4));
    }
}
