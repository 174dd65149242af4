//! What goes wrong in a run: `[[fault]]` tables, checked and planned.

use tidegate_control::units::Time;
use tidegate_sim::plan::{Fault, FaultKind, Lie};

use super::hosts::Hosts;
use crate::input::{InputError, Source, suggest};
use crate::scenario::file::{FaultFile, File, Name};

const KINDS: &[&str] = &["drop", "delay", "partition", "link-down", "host-down", "lies"];

/// What relays under PredicTor may tell their neighbours instead of their plans.
const LIES: &[(&str, Lie)] = &[
    ("greedy", Lie::Greedy),
    ("denying", Lie::Denying),
    ("not-numbers", Lie::NotNumbers),
    ("too-long", Lie::TooLong),
    ("too-many", Lie::TooMany),
    ("replayed", Lie::Replayed),
    ("garbage", Lie::Garbage),
    ("absent", Lie::Absent),
];

fn lie(name: &str) -> Option<Lie> {
    LIES.iter().find(|(known, _)| *known == name).map(|(_, lie)| *lie)
}

/// Names, probabilities and times of all faults.
pub(crate) fn check_faults(file: &File, source: &Source) -> Result<(), InputError> {
    let hosts: Vec<&str> = [&file.relay, &file.server, &file.client]
        .into_iter()
        .flatten()
        .map(|host| host.name.get_ref().as_str())
        .collect();
    for spanned in &file.fault {
        let fault = spanned.get_ref();
        let kind = fault.kind.get_ref().as_str();
        if !KINDS.contains(&kind) {
            let cause = format!("there is no fault `{kind}`");
            return Err(source.error(fault.kind.span(), cause, suggest(kind, KINDS)));
        }
        for name in fault.between.iter().flatten().chain(&fault.host) {
            // Generated relays have names that only the network knows.
            if !hosts.is_empty() && !hosts.contains(&name.get_ref().as_str()) {
                let cause = format!("there is no host `{}`", name.get_ref());
                return Err(source.error(name.span(), cause, suggest(name.get_ref(), &hosts)));
            }
        }
        if let Some(missing) = missing_key(fault) {
            return Err(source.error(
                spanned.span(),
                format!("a fault of kind `{kind}` needs `{missing}`"),
                "add it",
            ));
        }
        if let Some(name) = fault.lie.as_ref().filter(|name| lie(name.get_ref()).is_none()) {
            let known: Vec<&str> = LIES.iter().map(|(known, _)| *known).collect();
            let cause = format!("there is no lie `{}`", name.get_ref());
            return Err(source.error(name.span(), cause, suggest(name.get_ref(), &known)));
        }
        if fault.probability.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            return Err(source.error(spanned.span(), "`probability` is not in 0..=1", "1 drops everything"));
        }
        if fault.until.is_some_and(|until| until.0 <= fault.from.0) {
            return Err(source.error(spanned.span(), "the fault ends before it begins", "change `until`"));
        }
    }
    Ok(())
}

fn missing_key(fault: &FaultFile) -> Option<&'static str> {
    match fault.kind.get_ref().as_str() {
        "lies" if fault.lie.is_none() => Some("lie"),
        "link-down" | "host-down" | "lies" => fault.host.is_none().then_some("host"),
        _ if fault.between.is_none() => Some("between"),
        "drop" => fault.probability.is_none().then_some("probability"),
        "delay" => fault.extra.is_none().then_some("extra"),
        _ => None,
    }
}

/// The faults of a plan. A generated network may lack a host that a fault names.
pub(super) fn plan(file: &File, source: &Source, hosts: &Hosts) -> Result<Vec<Fault>, InputError> {
    let host = |name: &Name| {
        hosts.find(name.get_ref()).ok_or_else(|| {
            let cause = format!("this network has no host `{}`", name.get_ref());
            source.error(name.span(), cause, "generated relays are called relay1, relay2, ...")
        })
    };
    let plan_one = |fault: &FaultFile| {
        let named = |name: &Option<Name>| host(name.as_ref().expect("checked"));
        let between = || -> Result<(u32, u32), InputError> {
            let [a, b] = fault.between.as_ref().expect("checked");
            Ok((hosts.location(host(a)?), hosts.location(host(b)?)))
        };
        let kind = match fault.kind.get_ref().as_str() {
            "drop" => {
                FaultKind::Drop { between: between()?, probability: fault.probability.expect("checked") }
            }
            "delay" => FaultKind::Delay { between: between()?, extra: fault.extra.expect("checked").0 },
            "partition" => FaultKind::Partition { between: between()? },
            "link-down" => FaultKind::LinkDown { host: named(&fault.host)? },
            "lies" => FaultKind::Lies {
                host: named(&fault.host)?,
                lie: fault.lie.as_ref().and_then(|name| lie(name.get_ref())).expect("checked"),
            },
            _ => FaultKind::HostDown { host: named(&fault.host)? },
        };
        let until = fault.until.map_or(file.duration.get_ref().0, |until| until.0);
        Ok(Fault { kind, from: Time::ZERO + fault.from.0, until: Time::ZERO + until })
    };
    file.fault.iter().map(|fault| plan_one(fault.get_ref())).collect()
}
