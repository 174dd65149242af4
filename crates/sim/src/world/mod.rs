//! The world: an overlay of nodes on simulated TCP and QUIC, its users, and measurements of its relays.
//!
//! `event_loop` pops an event and hands it to its owner. There are four owners, each with private state:
//!
//! - `connections`: TCP, QUIC, the packets on links, and messages between the processes of a divided run;
//! - `nodes`: the protocol machines on hosts, with their token buckets and processor time (`gate`);
//! - `applications`: users, circuits' life at clients, transfers;
//! - `measurement`: FlashFlow's roles.
//!
//! `network` moves cells between nodes and connections. `context` has what all of them use: plan, clock, event queue
//! and observations. `steps` is a run that its caller advances; `windows` a run that is divided among processes.

mod applications;
mod connections;
mod context;
mod event;
mod event_loop;
mod gate;
mod measurement;
mod network;
mod nodes;
mod steps;
mod windows;

use std::ops::ControlFlow;

use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use crate::division::{Division, obstacle};
use crate::observe::Recorder;
use crate::plan::{Plan, System};

pub use context::RunEnd;
use event_loop::World;
pub use nodes::other_clients;
pub use steps::Steps;
pub use windows::Threads;

/// Runs a plan under a system. The plan, the system and the seed alone determine the result.
///
/// `progress` is called now and then with the simulated time; it can stop the run.
///
/// # Panics
/// If the plan is inconsistent (indices out of range); the lab checks that before.
pub fn run<R: Recorder>(
    plan: &Plan,
    system: &System,
    seed: Seed,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> RunEnd {
    run_on(&Threads::ONE, plan, system, seed, recorder, progress)
}

/// As [`run`], on several threads. Their number changes only the running time. One thread is used if the run is not
/// divided ([`Plan::processes`]), or cannot be ([`obstacle`]).
///
/// # Panics
/// As [`run`].
pub fn run_on<R: Recorder>(
    threads: &Threads<'_>,
    plan: &Plan,
    system: &System,
    seed: Seed,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> RunEnd {
    let watched = R::WATCHES_PACKETS || R::WATCHES_EVENTS;
    if plan.processes > 1 && !watched && obstacle(plan, system).is_none() {
        let division = Division::new(plan);
        return windows::run((plan, system, seed), &division, threads, recorder, progress);
    }
    let mut world = World::undivided((plan, system, seed));
    world.net.ctx.watches_packets = R::WATCHES_PACKETS;
    let stopped = world.run(recorder, progress);
    world.finish(stopped, recorder)
}
