//! The part of a scenario file that can run on sockets.

use serde::Deserialize;
use tidegate_control::units::{Rate, Span};

/// A scenario for sockets; other keys are refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LiveScenario {
    #[expect(dead_code, reason = "scenario files have a title")]
    pub title: String,
    pub every_system: EverySystem,
    pub system: Vec<toml::Table>,
    pub underlay: Between,
    pub relay: Vec<Relay>,
    pub user: Vec<User>,
}

/// `[every-system]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EverySystem {
    pub tcp: Tcp,
}

/// The kernel's TCP. Many kernels allow other algorithms than Reno only in the initial namespace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tcp {
    pub congestion: String,
    /// Must be true: the kernel always has small queues.
    pub small_queues: bool,
    /// Must be false: sockets of `net` set `TCP_NODELAY`.
    pub nagle: bool,
}

/// `[underlay]`: the delay between any two hosts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Between {
    pub delay: Span,
}

/// A relay, which gets its own host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relay {
    pub name: String,
    pub link: Rate,
}

/// A user on the guard's host with a server on the exit's host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct User {
    pub name: String,
    pub path: Vec<String>,
    pub start: Span,
    #[expect(dead_code, reason = "live circuits are built on demand")]
    pub circuit_lead: Option<Span>,
    #[expect(dead_code, reason = "its only value is bulk")]
    pub traffic: Bulk,
}

/// The only traffic of live users.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bulk {
    Bulk,
}
