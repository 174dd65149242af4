//! Why a network cannot be surveyed.

use std::fmt;

use tidegate_control::balance::Unweighed;
use tidegate_proto::paths::NoCandidate;

use crate::plan::{Plan, Role};

/// The reason why a system fails to give weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The system gives every relay a weight of zero.
    Unweighed(Unweighed),
    /// Its weights leave a position without a relay.
    Position(NoCandidate),
    /// The capacity of every relay is unknown or zero.
    NoCapacity,
    /// Probing is impossible: the network lacks a server, or has fewer than three relays.
    TooSmall,
    /// The run was stopped.
    Stopped,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unweighed(unweighed) => unweighed.fmt(f),
            Failure::Position(none) => none.fmt(f),
            Failure::NoCapacity => {
                f.write_str("relays' capacities are unlimited or zero: there is nothing to balance")
            }
            Failure::TooSmall => {
                f.write_str("the network has no server or fewer than three relays: nobody can probe it")
            }
            Failure::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Failure {}

/// The first server's place, where authorities' machines stand.
pub(super) fn place(plan: &Plan) -> Result<u32, Failure> {
    let server = plan.hosts.iter().find(|host| host.role == Role::Server);
    server.map(|host| host.location).ok_or(Failure::TooSmall)
}
