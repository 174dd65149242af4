//! What goes wrong in a run: `[[fault]]` tables, planned.

use tidegate_control::units::Time;
use tidegate_sim::plan::{Fault, FaultKind as Planned};

use super::hosts::Hosts;
use crate::input::{InputError, Source};
use crate::scenario::file::{File, Name};
use crate::scenario::users::{FaultFile, FaultKind};

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
    file.fault.iter().map(|fault| plan_one(fault.get_ref())).collect()
}
