//! Downloads without end over given relays, 40 ms from host to host.

use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::plan::*;

pub fn host(name: &str, role: Role, mbit: u64, colocated: Option<u32>) -> HostPlan {
    let queue = QueuePlan::DropTail { packets: 1000, bytes: u64::MAX };
    let link = LinkPlan { rate: Rate(mbit * 1_000_000), queue };
    HostPlan { name: name.into(), role, location: 0, colocated, up: link, down: link }
}

/// A client's download from a server over guard, middle and exit; the circuit is built `lead` before.
pub fn download(host: u32, path: [u32; 3], server: u32, start: Span, lead: Span) -> UserPlan {
    let request = RequestPlan { bytes: u64::MAX, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    UserPlan {
        host,
        class: "bulk".into(),
        route: Route::Pinned(path),
        second_path: None,
        servers: vec![server],
        traffic: Traffic::Fetch { requests: vec![request], pause: (Span::ZERO, Span::ZERO), every: None },
        start: Time::ZERO + start,
        stop: Time::NEVER,
        circuit_lead: lead,
        rests: Vec::new(),
        circuit_lifetime: Span::from_secs(600),
    }
}

pub fn plan(hosts: Vec<HostPlan>, users: Vec<UserPlan>, faults: Vec<Fault>, seconds: u64) -> Plan {
    Plan {
        hosts,
        paths: PathTable::uniform(1, Path { delay: Span::from_millis(40), ..Path::default() }),
        users,
        directory: Directory::default(),
        faults,
        duration: Span::from_secs(seconds),
        sample_every: Span::ZERO,
        trace_one_in: 0,
        processes: 1,
        measurements: Vec::new(),
    }
}
