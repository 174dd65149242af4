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
    /// Line of the configuration that names the node.
    pub(crate) line: Option<usize>,
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
    /// Number of such processes on the host (Shadow 2's `quantity`).
    pub count: u32,
}

/// Largest `quantity` of hosts or processes.
const MOST: u64 = 1_000_000;
/// The cure of a wrong `quantity`.
pub(crate) const QUANTITY: &str = "write a whole number from 1 to 1000000";

/// Programs of tor that are not tor itself.
const TOOLS_OF_TOR: [&str; 4] = ["tor-resolve", "tor-gencert", "tor-print-ed-signing-cert", "tor-fw-helper"];

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

impl Process {
    /// Whether it is this program, or a build of it such as `tor-0.4.8`.
    pub fn is(&self, program: &str) -> bool {
        let rest = self.program.strip_prefix(program);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphabetic()))
            && !TOOLS_OF_TOR.contains(&self.program.as_str())
    }
}

impl Host {
    /// Its processes of a program.
    pub fn running<'h>(&'h self, program: &'h str) -> impl Iterator<Item = &'h Process> {
        self.processes.iter().filter(move |process| process.is(program))
    }

    /// Whether it runs a program.
    fn runs(&self, program: &str) -> bool {
        self.running(program).next().is_some()
    }

    /// Its role, by its programs and by the names that tornettools and Shadow's examples give.
    pub(crate) fn role(&self) -> Role {
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

/// Reads a `quantity`; none if it is not a whole number from 1 to a million.
pub(crate) fn quantity(text: &str) -> Option<u32> {
    let number = text.trim().parse().ok()?;
    (1..=MOST).contains(&number).then_some(number as u32)
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
            ("relay1", &["tor-0.4.8"], Role::Relay),
            ("relay1", &["tor_patched", "tor-gencert"], Role::Relay),
            ("torclient", &["tor0.4.7", "tgen-1.1"], Role::Client),
            ("exit1", &["torsocks", "tor-resolve", "oniontrace", "tgentools"], Role::Other),
        ] {
            assert_eq!(host(name, programs).role(), role, "{name} {programs:?}");
        }
    }
}
