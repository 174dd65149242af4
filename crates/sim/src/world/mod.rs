//! The world: an overlay, its users and its measurements on simulated TCP and QUIC.
//!
//! A run takes a plan, a system and a seed. It reports observations to a `Recorder` and returns a `RunEnd`. Cells have
//! the size and the order of real ones. Application bytes are only counted. Relay cells carry the number of their onion
//! layers and are not encrypted. The messages of relays, controllers and FlashFlow keep their content.
//!
//! Links carry only the sizes of measurement cells. When cells return, the measurer's host computes their content: it
//! runs the relay's decryption and then the measurer's check, with the code that sockets use.
//!
//! Cells, also those of measurement circuits, travel on simulated TCP or QUIC, with two exceptions. FlashFlow's control
//! messages arrive after the delay of the path. A controller's messages out of band arrive after the delay that it sets.
//!
//! Four owners hold the state of the world; the `context` holds what connections, applications and measurement use. The
//! fields of the owners are private. A `Gate`, which belongs to `nodes` and has some fields that other files use, holds
//! the limits of one relay, if it has any (token buckets, processor time), and lists the connections that wait for
//! them. The `Network` lets these connections read and write in turn. While FlashFlow measures the relay, `measurement`
//! chooses what is read; writes are unlimited.
//!
//! | owner | state | calls |
//! |---|---|---|
//! | `connections` | TCP, QUIC, packets on links, messages to the other processes of a divided run | – |
//! | `nodes` | protocol machines, which relays send false controller messages, which end of a connection each channel and each stream to a server uses, limits (`gate`) | – |
//! | `applications` | users and servers, which circuits clients build and close, transfers | `network` |
//! | `measurement` | FlashFlow's roles | `network`; passes events of nodes on to the applications (`NodeEvents`) |
//!
//! Messages between processes also carry the state of transfers, so `connections` imports `TransferState` from `applications`.
//!
//! The owners form two levels. `World` has the applications, the measurement and a `Network`. The `Network` has the
//! connections, the nodes and the `context`: plan, clock, event queue and observations. Connections and nodes do not
//! call each other: the `Network` moves cells between them, and reports to the applications, which implement the trait
//! `NodeEvents`. Applications and measurement use the `Network`'s methods, its connections and its nodes. Calls are
//! synchronous: their order decides the order of packets on a link.
//!
//! `crate::event_loop` is the loop of every simulation. `event_loop` of this folder defines `World` and makes it a
//! model of that loop: `World::next` takes an event from the queue and `World::handle` passes it to an owner or to the
//! `Network`. `World` itself handles what concerns several owners: a packet arrives, a TCP timer is due, an end can be
//! read or written, a relay with a gate may read and write again (`pump`), messages of other processes arrive, queues
//! are sampled.
//!
//! A *process* of a divided run is a group of hosts with a `World` of its own. All are in one operating-system process.
//! Threads run them in parallel for a window of simulated time, at most the shortest delay between two processes; then the
//! processes exchange messages (`windows`). `steps` is a run that its caller advances.
//!
//! Callers: `lab::runs` (scenarios), `lab::schedule` (estimates how much division would gain), [`crate::balance`]
//! (surveys), [`crate::flashflow`], and the Python package's environment for reinforcement learning ([`Steps`]).

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

/// Runs a plan under a system. The plan, the system and the seed alone determine the result, with the exception that
/// [`run_on`] names.
///
/// `progress` is called with the simulated time about every 16,384 events; it can stop the run.
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

/// As [`run`], on several threads. Their number changes only the running time.
///
/// [`Plan::processes`] divides a run. It stays undivided, on one thread, if the plan or the system prevents division
/// ([`obstacle`]), or if the recorder watches packets or events ([`Recorder::WATCHES_PACKETS`],
/// [`Recorder::WATCHES_EVENTS`]). The observations of a divided run differ from those of the undivided one.
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
