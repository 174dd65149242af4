//! The text of an imported scenario.

use std::fmt::Write as _;
use std::path::Path;

use tidegate_control::units::Span;
use tidegate_data::tgen_actions::Actions;

use super::draft::{Behaviour, Draft, Users};

/// The tor of a network without a consensus that would date it (`scenario/tor.rs`).
pub(super) const OLD_TOR: &str = "[[system]] has tor of 2018, before congestion control";

/// Share of Tor that a network has which is not that of a simulation.
pub(super) const FRACTION: f64 = 0.01;

/// Number of users if the source lacks one.
const USERS: u32 = 100;

impl Draft {
    /// Writes the scenario.
    pub(super) fn scenario(&self) -> String {
        let mut text =
            String::from("duration = \"120 s\"\nwarmup = \"30 s\"\nsample = \"100 ms\"\n\n[tor]\n");
        // A generated network is simulated as a whole; staged relays are all of Tor, of which 1 % is simulated.
        put(&mut text, &format!("fraction = {:?}", if self.network.is_some() { 1.0 } else { FRACTION }));
        for (key, file) in [("capacity", &self.relays), ("latency", &self.latency)] {
            file.iter().for_each(|file| put(&mut text, &format!("{key} = {}", quoted(file))));
        }
        if let Some(network) = &self.network {
            put(&mut text, &format!("servers = {}", network.servers.max(1)));
            if let Some([up, down]) = network.client_links {
                put(&mut text, &format!("client-up = \"{up}\"\nclient-down = \"{down}\""));
            }
            network.server_link.iter().for_each(|rate| put(&mut text, &format!("server-link = \"{rate}\"")));
            put(&mut text, "queue = \"shadow\"\nqueue-down = \"codel\"");
        }
        put(&mut text, "\n[[system]]\nname = \"tor\"\nof-consensus = true");
        if let Some([stream, packet]) = &self.models {
            put(&mut text, &format!("\n{}", markov("markov", stream, packet, Span::from_secs(120))));
        }
        self.traffic.iter().for_each(|table| put(&mut text, &format!("\n{}", table.text)));
        self.users.iter().for_each(|users| put(&mut text, &self.user(users)));
        if self.network.is_none() {
            if self.models.is_some() {
                put(&mut text, &user("markov", "markov", USERS, &[]));
            } else if self.users.is_empty() {
                put(&mut text, &user("web", "web", USERS, &[]));
            }
        }
        text
    }

    /// The name of the traffic of users.
    pub(super) fn traffic_of<'d>(&'d self, users: &'d Users) -> &'d str {
        // Action graphs in the folder that no client names belong to the clients that measure.
        let mut measures = self.traffic.iter().map(|table| table.name.as_str()).filter(|name| {
            !self.users.iter().any(|users| users.traffic == Behaviour::Table(name.to_string()))
        });
        match &users.traffic {
            Behaviour::Table(name) => name,
            Behaviour::Measures => measures.next().unwrap_or("benchmark"),
            Behaviour::Browses if self.models.is_some() => "markov",
            Behaviour::Browses => "privcount",
        }
    }

    fn user(&self, users: &Users) -> String {
        let text = user(&users.name, self.traffic_of(users), users.count, &users.countries);
        if users.onion { text + "\nonion-service = true" } else { text }
    }
}

/// A path as TOML.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("text can be written");
}

fn user(name: &str, traffic: &str, count: u32, countries: &[String]) -> String {
    let mut text = format!("\n[[user]]\nname = \"{name}\"\ntraffic = \"{traffic}\"\ncount = {count}\n");
    if !countries.is_empty() {
        let list: Vec<String> = countries.iter().map(|code| format!("\"{code}\"")).collect();
        put(&mut text, &format!("countries = [{}]", list.join(", ")));
    }
    text + "start = [\"0 s\", \"30 s\"]"
}

/// The `[traffic]` table of two Markov models.
pub(super) fn markov(name: &str, stream: &Path, packet: &Path, timeout: Span) -> String {
    format!(
        "[traffic.{name}]\ntimeout = \"{timeout}\"\nstream-model = {}\npacket-model = {}",
        quoted(stream),
        quoted(packet)
    )
}

/// The `[traffic]` table of an action graph.
pub(super) fn table(name: &str, actions: &Actions) -> String {
    let mut text = format!("[traffic.{name}]\n");
    match actions.pause {
        // An interval is one time; the shortest of a list keeps the most requests.
        Some(pause) if pause.again => put(&mut text, &format!("every = \"{}\"", pause.time[0])),
        Some(pause) if pause.time[0] == pause.time[1] => {
            put(&mut text, &format!("pause = \"{}\"", pause.time[0]));
        }
        Some(pause) => put(&mut text, &format!("pause = [\"{}\", \"{}\"]", pause.time[0], pause.time[1])),
        None => {}
    }
    for request in &actions.requests {
        put(&mut text, &format!("[[traffic.{name}.requests]]"));
        put(&mut text, &format!("size = \"{} B\"", request.size));
        put(&mut text, &format!("weight = {:?}", request.weight));
        request.sent.iter().for_each(|sent| put(&mut text, &format!("request = \"{sent} B\"")));
        request.timeout.iter().for_each(|timeout| put(&mut text, &format!("timeout = \"{timeout}\"")));
    }
    text
}
