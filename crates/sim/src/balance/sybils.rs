//! Sybil attack: one machine that claims to be many relays.

use tidegate_proto::cell::RelayId;

use crate::plan::{LinkPlan, Plan, QueuePlan, RelayEntry, RelayLimits, Role};

/// Each malicious relay becomes `count` relays of different addresses and operators that share its machine's link. Only
/// that link limits them.
pub(super) fn join(plan: &mut Plan, abilities: &mut Vec<f64>, malicious: &mut Vec<bool>, count: u32) {
    for index in (0..malicious.len()).filter(|index| malicious[*index]).collect::<Vec<_>>() {
        let entry = plan.directory.relays[index].clone();
        let (machine, ability) = (entry.id.0, abilities[index]);
        let host = &mut plan.hosts[machine as usize];
        let rate = tidegate_control::units::Rate::from_bytes_per_s(ability as u64);
        (host.up.rate, host.down.rate) = (rate, rate);
        if let Role::Relay(limits) = &mut host.role {
            *limits = RelayLimits { bucket: None, ..*limits };
        }
        let link = LinkPlan { rate, queue: QueuePlan::Machine };
        let host = crate::plan::HostPlan { colocated: Some(machine), up: link, down: link, ..host.clone() };
        for number in 1..count {
            let id = RelayId(plan.hosts.len() as u32);
            let mut identity = entry.identity;
            identity[19] = identity[19].wrapping_add(number as u8);
            plan.hosts.push(host.clone());
            plan.directory.relays.push(RelayEntry {
                id,
                identity,
                relatives: Vec::new(),
                network: 0,
                ..entry.clone()
            });
            abilities.push(ability);
            malicious.push(true);
        }
    }
}
