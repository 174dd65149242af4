//! Configurations of Shadow: hosts with their links and programs, and the network graph.
//!
//! `shadow_yaml` reads those of Shadow 2 and 3, `shadow_xml` those of Shadow 1, `shadow_file` either. `shadow_folder`
//! reads the files that they name.

use std::net::Ipv4Addr;

use tidegate_control::units::{Rate, Span};

use crate::country::Country;

/// A configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// The network between them.
    pub graph: NetworkGraph,
    /// Whether direct edges take precedence over shorter paths (`use_shortest_path: false`).
    pub direct: bool,
    /// Simulated time, if it is readable.
    pub stop: Option<Span>,
}

/// Where the graph of a configuration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkGraph {
    /// None is named.
    #[default]
    Absent,
    /// Shadow's built-in graph of this name.
    BuiltIn(String),
    /// In a file, with the path as written.
    File(String),
    /// In the configuration itself: GML in YAML, GraphML in XML.
    Inline(String),
}

/// A host, or several alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Number of such hosts (Shadow's `quantity`).
    pub count: u32,
    /// Its node of the graph.
    pub node: Option<String>,
    /// Its country, if the configuration gives it.
    pub country: Option<Country>,
    /// Its address, or a hint of it.
    pub address: Option<Ipv4Addr>,
    /// Rate of its link to the network; default: that of its node.
    pub up: Option<Rate>,
    /// Rate of its link from the network; default: that of its node.
    pub down: Option<Rate>,
    /// Its programs.
    pub processes: Vec<Process>,
}

/// A program of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Name of the program, without its folder.
    pub program: String,
    /// Its arguments, separated by spaces.
    pub arguments: String,
}

/// The role of a host in a network of Tor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A directory authority.
    Authority,
    /// A relay.
    Relay,
    /// A server that clients fetch from through exits.
    Server,
    /// An onion service.
    OnionService,
    /// A client that fetches through exits.
    Client,
    /// A client of onion services.
    OnionClient,
    /// A client that fetches without Tor.
    DirectClient,
    /// Anything else.
    Other,
}

impl Host {
    /// Whether it runs a program.
    pub(crate) fn runs(&self, program: &str) -> bool {
        self.processes.iter().any(|process| process.program == program)
    }

    /// Its role, by its programs and by the names that tornettools and Shadow's examples give.
    pub fn role(&self) -> Role {
        let (tor, tgen) = (self.runs("tor"), self.runs("tgen"));
        let name = self.name.to_lowercase();
        let is = |part: &str| name.contains(part);
        let of_tornettools = name.starts_with("markovclient") || name.starts_with("perfclient");
        match (tor, tgen) {
            // tornettools and Shadow call authorities `4uthority`.
            (true, false) if is("uthority") => Role::Authority,
            (true, false) if is("client") => Role::Other,
            (true, false) => Role::Relay,
            (_, true) if is("server") && (tor || is("onion")) => Role::OnionService,
            (false, true) if is("server") => Role::Server,
            (_, true) if of_tornettools && is("onion") => Role::OnionClient,
            (true, true) => Role::Client,
            (false, true) if of_tornettools => Role::Client,
            (false, true) => Role::DirectClient,
            (false, false) => Role::Other,
        }
    }
}

/// A time in seconds; none beyond 300 years: 64 bits of nanoseconds hold 584.
pub(crate) fn seconds(seconds: u64) -> Option<Span> {
    (seconds < 10_000_000_000).then(|| Span::from_secs(seconds))
}

/// Name of a program, without its folder.
pub(crate) fn program(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_follow_from_programs_and_names() {
        let host = |name: &str, programs: &[&str]| {
            let process = |program: &&str| Process { program: program.to_string(), ..Process::default() };
            Host { name: name.into(), processes: programs.iter().map(process).collect(), ..Host::default() }
        };
        for (name, programs, role) in [
            ("4uthority1", &["tor", "oniontrace"][..], Role::Authority),
            ("relay7exitguard", &["tor", "oniontrace"], Role::Relay),
            ("exit1", &["tor"], Role::Relay),
            ("server1exit", &["tgen"], Role::Server),
            ("fileserver", &["tgen"], Role::Server),
            ("server3onionservice", &["tgen", "tor"], Role::OnionService),
            ("perfclient1exit", &["tor", "oniontrace", "tgen"], Role::Client),
            ("markovclient2exit", &["tgen"], Role::Client),
            ("markovclient9onionservice", &["tor", "tgen"], Role::OnionClient),
            ("torclient", &["tor", "tgen"], Role::Client),
            ("client", &["tgen"], Role::DirectClient),
            ("client", &["curl"], Role::Other),
            ("idleclient", &["tor"], Role::Other),
        ] {
            assert_eq!(host(name, programs).role(), role, "{name} {programs:?}");
        }
    }
}
