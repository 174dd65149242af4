//! The emulated network of an experiment: which hosts exist, their links, and each client's path.

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};

/// Rate of the links of clients, of the server and of the authority.
pub const END: Rate = Rate(100_000_000);

/// The parameters of a network.
#[derive(Clone, Debug)]
pub struct Topology {
    pub guards: u16,
    pub middles: u16,
    pub exits: u16,
    pub clients: u16,
    /// Rate of guards and exits.
    pub relay_rate: Rate,
    pub middle_rate: Rate,
    /// One-way delay between any two hosts.
    pub delay: Span,
    /// Queue of each link, in packets.
    pub queue: u32,
    /// TCP's congestion control, by the kernel's name.
    pub congestion: String,
}

/// A client's relays, by name, and the start of its downloads after the others'.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientPath {
    pub client: String,
    pub hops: [String; 3],
    pub offset: Span,
}

impl Topology {
    /// The relays' names.
    pub fn relays(&self) -> Vec<String> {
        let named = |kind: &'static str, count| (1..=count).map(move |number| format!("{kind}{number}"));
        named("guard", self.guards)
            .chain(named("middle", self.middles))
            .chain(named("exit", self.exits))
            .collect()
    }

    /// The rate of a host's link.
    pub fn rate(&self, name: &str) -> Rate {
        match name.trim_end_matches(char::is_numeric) {
            "guard" | "exit" => self.relay_rate,
            "middle" => self.middle_rate,
            _ => END,
        }
    }

    /// The paths of a round. Each place's relays get equal numbers of clients, and the seed draws which.
    pub fn paths(&self, seed: u64) -> Vec<ClientPath> {
        let mut draws = Seed::root(seed).fork("lab").random();
        let mut places =
            [("guard", self.guards), ("middle", self.middles), ("exit", self.exits)].map(|(kind, count)| {
                let mut order: Vec<String> =
                    (0..self.clients).map(|client| format!("{kind}{}", client % count + 1)).collect();
                draws.shuffle(&mut order);
                order
            });
        let client = |number: u16| ClientPath {
            client: format!("client{number}"),
            hops: places.each_mut().map(|place| place.pop().expect("one per client")),
            offset: Span((draws.unit() * 1e9) as u64),
        };
        (1..=self.clients).map(client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_depend_on_the_seed_and_are_balanced() {
        let rate = Rate(10_000_000);
        let network = Topology {
            guards: 3,
            middles: 1,
            exits: 2,
            clients: 6,
            relay_rate: rate,
            middle_rate: Rate(4_000_000),
            delay: Span::from_millis(40),
            queue: 100,
            congestion: "cubic".into(),
        };
        assert_eq!(network.relays(), ["guard1", "guard2", "guard3", "middle1", "exit1", "exit2"]);
        assert_eq!(network.rate("middle1"), Rate(4_000_000));
        assert_eq!(network.rate("client6"), END);
        let paths = network.paths(1);
        assert_eq!(paths, network.paths(1));
        assert_ne!(paths, network.paths(2));
        let users =
            |relay: &str| paths.iter().filter(|path| path.hops.iter().any(|hop| hop == relay)).count();
        assert_eq!(["guard1", "guard3", "middle1", "exit2"].map(users), [2, 2, 6, 3]);
    }
}
