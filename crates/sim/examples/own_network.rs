//! A network of one's own, and a recorder of one's own: two downloads share a guard of 4 Mbit/s, over one TCP
//! connection (vanilla Tor) and over one each (PCTCP). `cargo run -p tidegate-sim --example own_network`.
use std::ops::ControlFlow;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::observe::{Circuit, Observation, Recorder};
use tidegate_sim::plan::*;
use tidegate_sim::world;

/// Bytes delivered to the client, by second and circuit.
struct Rates([[u64; 2]; 10]);

impl Recorder for Rates {
    fn record(&mut self, now: Time, observation: &Observation) {
        if let Observation::Delivered { circuit: Circuit(circuit), bytes, .. } = observation {
            self.0[(now.0 / 1_000_000_000).min(9) as usize][*circuit as usize] += u64::from(*bytes);
        }
    }
}

fn host(name: &str, role: Role, megabits: u64) -> HostPlan {
    let queue = QueuePlan::DropTail { packets: 1000, bytes: u64::MAX };
    let link = LinkPlan { rate: Rate(megabits * 1_000_000), queue };
    HostPlan { name: name.into(), role, location: 0, colocated: None, up: link, down: link }
}

fn main() {
    let relay = |name, megabits| host(name, Role::Relay(RelayLimits::default()), megabits);
    let (client, server) = (host("client", Role::Client, 100), host("server", Role::Server, 100));
    let request = RequestPlan { bytes: 2_000_000, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    let user = |start| UserPlan {
        host: 3,
        class: "bulk".into(),
        route: Route::Pinned([0, 1, 2]),
        second_path: None,
        servers: vec![4],
        traffic: Traffic::Fetch { requests: vec![request], pause: (Span::ZERO, Span::ZERO), every: None },
        start: Time::ZERO + Span::from_secs(start),
        stop: Time::NEVER,
        circuit_lead: Span::from_secs(start),
        rests: Vec::new(),
        circuit_lifetime: Span::from_secs(600),
    };
    let plan = Plan {
        hosts: vec![relay("guard", 4), relay("middle", 10), relay("exit", 10), client, server],
        paths: PathTable::uniform(1, Path { delay: Span::from_millis(20), ..Path::default() }),
        users: vec![user(1), user(3)],
        duration: Span::from_secs(10),
        sample_every: Span::from_secs(1),
        ..Plan::default()
    };
    for transport in [Transport::Vanilla, Transport::PerCircuit] {
        let mut rates = Rates([[0; 2]; 10]);
        let system = System { transport, ..System::default() };
        world::run(&plan, &system, Seed::root(1), &mut rates, &mut |_| ControlFlow::Continue(()));
        println!("{transport:?}: bytes per second {:?}", rates.0);
    }
}
