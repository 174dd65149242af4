//! A scenario's file, as far as it can be run on sockets.

use serde::Deserialize;
use tidegate_control::units::{Rate, Span};

/// What can be live of a scenario: a key that is not here is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    #[expect(dead_code, reason = "scenarios have one")]
    pub title: String,
    pub every_system: EverySystem,
    pub system: Vec<toml::Table>,
    pub underlay: Between,
    pub relay: Vec<Relay>,
    pub user: Vec<User>,
}

/// What sockets have of their own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EverySystem {
    pub tcp: Tcp,
}

/// The kernel's TCP. Other algorithms than Reno are for the first namespace alone on many machines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tcp {
    pub congestion: String,
    /// The kernel has them always, so the simulator must have them, too.
    pub small_queues: bool,
}

/// Between any two hosts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Between {
    pub delay: Span,
}

/// A relay on a host of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relay {
    pub name: String,
    pub link: Rate,
}

/// A user at the guard's machine, whose server is at the exit's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct User {
    pub name: String,
    pub path: Vec<String>,
    pub start: Span,
    #[expect(dead_code, reason = "live circuits are built when they are needed")]
    pub circuit_lead: Option<Span>,
    #[expect(dead_code, reason = "it was checked to be bulk")]
    pub traffic: Bulk,
}

/// The traffic that live users have.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bulk {
    Bulk,
}
