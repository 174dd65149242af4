//! One side of an experiment: stock tor on emulated hosts.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};

use tidegate_lab::input::InputError;
use tidegate_net::private_tor::{self, Hosts, Network};

use super::fragment::Fragment;
use super::topology::{ClientPath, Topology};
use crate::commands::overlay::start_client;
use crate::failure::Failure;
use crate::stage::Stage;
use crate::underlay::{Host, Shaped, Underlay};

const AUTHORITY: &str = "authority0";
const SERVER: &str = "server";

/// Options of all nodes. tor does not count bytes to private addresses against its limits by default.
const ALL: &str = "EnforceDistinctSubnets 0\nConfluxEnabled 0\nCountPrivateBandwidth 1\n";
/// Options of the authority. A vote every 20 s lets relays enter soon; clients rarely fetch a consensus that is valid long.
const VOTES: &str =
    "V3AuthNIntervalsValid 20\nV3AuthVotingInterval 20\nV3AuthVoteDelay 4\nV3AuthDistDelay 4\n";
/// Options of clients. A circuit serves its user to the end.
const CLIENT: &str = "MaxCircuitDirtiness 2 hours\nCircuitStreamTimeout 300\nStrictNodes 1\n";

/// The hosts by name.
#[derive(Clone)]
struct Emulated(BTreeMap<String, Host>);

impl Hosts for Emulated {
    fn address(&self, name: &str) -> Ipv4Addr {
        self.0[name].address
    }

    fn spawn(&self, name: &str, mut command: Command) -> io::Result<Child> {
        let child = self.0[name].run(move || command.spawn())?;
        // Other work on this machine must not delay tor. Without permission it keeps the normal priority.
        let _ = rustix::process::setpriority_process(rustix::process::Pid::from_child(&child).into(), -15);
        Ok(child)
    }
}

/// A running network.
pub struct Side {
    underlay: Underlay,
    hosts: BTreeMap<String, Host>,
    /// Stops when it is dropped.
    network: Network,
    /// The clients' paths and SOCKS ports.
    pub clients: Vec<(ClientPath, SocketAddr)>,
}

impl Side {
    /// Starts the network and waits until all clients know it.
    pub fn start(
        stage: &Stage,
        tor: &Path,
        name: &str,
        topology: &Topology,
        paths: &[ClientPath],
        fragment: &Fragment,
    ) -> Result<Side, Failure> {
        let relays = topology.relays();
        let names = [AUTHORITY.to_owned(), SERVER.to_owned()]
            .into_iter()
            .chain(relays.clone())
            .chain(paths.iter().map(|path| path.client.clone()));
        let names: Vec<String> = names.collect();
        let underlay = underlay(topology, &names)?;
        let hosts: BTreeMap<String, Host> = names.into_iter().zip(underlay.hosts.iter().cloned()).collect();
        for host in hosts.values() {
            // A connection must not start from what the kernel learnt on an earlier one.
            let forget = || std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
            host.run(forget).map_err(Failure::other)?;
        }
        let folder = stage.directory.join(name);
        std::fs::create_dir(&folder).map_err(Failure::other)?;
        let network = Network::on(Emulated(hosts.clone()), tor, &folder, 1).map_err(Failure::other)?;
        let mut side = Side { underlay, hosts, network, clients: Vec::new() };
        side.start_relays(stage, &relays, fragment)?;
        for path in paths {
            let hops = path.hops.each_ref().map(std::slice::from_ref);
            let options = format!("{ALL}{CLIENT}{}", fragment.torrc());
            let socks = start_client(stage, &mut side.network, &path.client, Some(hops), &options)?;
            side.clients.push((path.clone(), socks));
        }
        Ok(side)
    }

    fn start_relays(&mut self, stage: &Stage, relays: &[String], fragment: &Fragment) -> Result<(), Failure> {
        let (own, parameters) = (fragment.torrc(), fragment.consensus_params());
        self.network.start(&format!("{VOTES}{ALL}{parameters}{own}")).map_err(Failure::other)?;
        for name in relays {
            let relay = self.network.relay(name).map_err(Failure::other)?;
            let exits = if name.starts_with("exit") { private_tor::RELAY } else { "ExitRelay 0\n" };
            self.network.run_relay(&relay, &format!("{exits}{ALL}{own}")).map_err(Failure::other)?;
        }
        let listed: Vec<String> = relays.iter().map(|name| format!("\nr {name} ")).collect();
        let ready = || listed_everywhere(&self.network, relays, &listed).then_some(());
        stage.wait_for("relays that have a consensus with all relays", ready)
    }

    /// The host of a client or of the server.
    pub fn host(&self, name: &str) -> &Host {
        &self.hosts[name]
    }

    /// The server's host.
    pub fn server(&self) -> &Host {
        self.host(SERVER)
    }

    /// Warnings in the clients' logs. Relays warn of circuits that a network this small cannot have.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.network.warnings().into_iter();
        warnings.filter(|line| line.starts_with("client")).collect()
    }

    /// Ends the network and returns by how much its packets were late, in seconds (99th percentile).
    pub fn end(self) -> Result<f64, Failure> {
        drop(self.network);
        self.underlay.end().map(|late| late.as_secs_f64()).map_err(Failure::other)
    }
}

fn listed_everywhere(network: &Network, relays: &[String], listed: &[String]) -> bool {
    network.lists(listed) && relays.iter().all(|name| network.knows(name, listed))
}

/// Creates the hosts, or says what this machine lacks.
pub fn underlay(topology: &Topology, names: &[String]) -> Result<Underlay, InputError> {
    let rates: Vec<_> = names.iter().map(|name| topology.rate(name)).collect();
    let queue = topology.queue as usize;
    Underlay::new(&rates, Shaped::Network, queue, topology.delay, &topology.congestion).map_err(|cause| {
        let cure =
            "run it as root (sudo) where /dev/net/tun and the tool `ip` exist; containers need --privileged";
        InputError::new("tidegate lab real", format!("needs hosts of its own: {cause}"), cure)
    })
}
