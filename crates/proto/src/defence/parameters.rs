//! Parameters of a consensus against denial of service (tor's `dos.c`, `hs_dos.c` and `relay.c`).

use std::ops::RangeInclusive;

use tidegate_control::units::Span;

use crate::crypto::onion_services::IntroductionLimit;

/// Limits of circuits that clients create (`DoSCircuitCreation*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitDefence {
    /// An address with fewer connections is never refused.
    pub min_connections: u32,
    /// Circuits per second and address.
    pub rate: u32,
    /// Circuits at once after a quiet time.
    pub burst: u32,
    /// Whether circuits are refused, or only counted.
    pub refuses: bool,
    /// How long an address is refused: this long, and a random time up to half of it.
    pub period: Span,
    /// How often circuits of an address may overflow a queue towards the exit (`dos_num_circ_max_outq`); 0 means any.
    pub full_queues: u32,
}

/// Limits of connections per address (`DoSConnection*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionDefence {
    /// Connections above which further ones are refused.
    pub concurrent: u32,
    /// Whether connections are closed, or only counted.
    pub closes: bool,
    /// Connections per second.
    pub rate: u32,
    /// Connections at once after a quiet time.
    pub burst: u32,
    /// How long an address that connects too fast is refused: this long, and a random time up to half of it.
    pub period: Span,
}

/// What happens to streams beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// They are only counted.
    Accept,
    /// The stream ends.
    EndStream,
    /// Its circuit ends.
    EndCircuit,
}

/// Limits of streams per circuit (`DoSStreamCreation*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamDefence {
    /// Streams per second.
    pub rate: u32,
    /// Streams at once after a quiet time.
    pub burst: u32,
    /// What happens to further streams.
    pub action: StreamAction,
}

/// Options of tor that override parameters of the same name, with the values that they may have here. Tor's `auto`, and 0
/// where it means the consensus' value, are an absent option.
pub const OPTIONS: [(&str, RangeInclusive<i32>); 17] = [
    ("DoSCircuitCreationEnabled", 0..=1),
    ("DoSCircuitCreationMinConnections", 1..=i32::MAX),
    ("DoSCircuitCreationRate", 1..=i32::MAX),
    ("DoSCircuitCreationBurst", 1..=i32::MAX),
    ("DoSCircuitCreationDefenseType", 1..=2),
    ("DoSCircuitCreationDefenseTimePeriod", 1..=i32::MAX),
    ("DoSConnectionEnabled", 0..=1),
    ("DoSConnectionMaxConcurrentCount", 1..=i32::MAX),
    ("DoSConnectionDefenseType", 1..=2),
    ("DoSConnectionConnectRate", 1..=i32::MAX),
    ("DoSConnectionConnectBurst", 1..=i32::MAX),
    ("DoSConnectionConnectDefenseTimePeriod", 10..=i32::MAX),
    ("DoSStreamCreationEnabled", 0..=1),
    ("DoSStreamCreationRate", 1..=i32::MAX),
    ("DoSStreamCreationBurst", 1..=i32::MAX),
    ("DoSStreamCreationDefenseType", 1..=3),
    ("DoSRefuseSingleHopClientRendezvous", 0..=1),
];

/// Parameters of a consensus against denial of service. Without a consensus all defences are off, as in tor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefenceParameters {
    /// Limits of circuits.
    pub circuits: Option<CircuitDefence>,
    /// Limits of connections.
    pub connections: Option<ConnectionDefence>,
    /// Limits of streams.
    pub streams: Option<StreamDefence>,
    /// The limit of introductions of services that set none (`HiddenServiceEnableIntroDoS*`).
    pub introductions: Option<IntroductionLimit>,
    /// Whether clients may not make their guard a rendezvous point (`DoSRefuseSingleHopClientRendezvous`).
    pub refuses_single_hop_rendezvous: bool,
    /// Longest circuit queues towards clients and towards exits (`circ_max_cell_queue_size`, `.._out`), if stated.
    pub queues: [Option<u32>; 2],
}

impl DefenceParameters {
    /// Reads the parameters. `stated` looks one up by name. Values outside of tor's ranges count as the nearest limit, and
    /// missing ones as tor's defaults.
    pub fn of_consensus(stated: impl Fn(&str) -> Option<i32>) -> DefenceParameters {
        let within = |name: &str, default: i32, low: i32, high: i32| {
            stated(name).unwrap_or(default).clamp(low, high).unsigned_abs()
        };
        let is_on = |name: &str| within(name, 0, 0, 1) == 1;
        let at_least_one = |name: &str, default: i32| within(name, default, 1, i32::MAX);
        let seconds =
            |name: &str, default: i32, low: i32| Span::from_secs(within(name, default, low, i32::MAX).into());
        let rate_and_burst = |of: &str, rate: i32, burst: i32| {
            (at_least_one(&format!("{of}Rate"), rate), at_least_one(&format!("{of}Burst"), burst))
        };

        let circuits = is_on("DoSCircuitCreationEnabled").then(|| {
            let (rate, burst) = rate_and_burst("DoSCircuitCreation", 3, 90);
            CircuitDefence {
                min_connections: at_least_one("DoSCircuitCreationMinConnections", 3),
                rate,
                burst,
                refuses: within("DoSCircuitCreationDefenseType", 2, 1, 2) == 2,
                period: seconds("DoSCircuitCreationDefenseTimePeriod", 3600, 0),
                full_queues: within("dos_num_circ_max_outq", 3, 0, i32::MAX),
            }
        });
        let connections = is_on("DoSConnectionEnabled").then(|| {
            let (rate, burst) = rate_and_burst("DoSConnectionConnect", 20, 40);
            ConnectionDefence {
                concurrent: at_least_one("DoSConnectionMaxConcurrentCount", 100),
                closes: within("DoSConnectionDefenseType", 2, 1, 2) == 2,
                rate,
                burst,
                period: seconds("DoSConnectionConnectDefenseTimePeriod", 24 * 3600, 10),
            }
        });
        let streams = is_on("DoSStreamCreationEnabled").then(|| {
            let (rate, burst) = rate_and_burst("DoSStreamCreation", 100, 300);
            let action = match within("DoSStreamCreationDefenseType", 2, 1, 3) {
                1 => StreamAction::Accept,
                2 => StreamAction::EndStream,
                _ => StreamAction::EndCircuit,
            };
            StreamDefence { rate, burst, action }
        });
        let introductions = is_on("HiddenServiceEnableIntroDoSDefense").then(|| IntroductionLimit {
            rate: within("HiddenServiceEnableIntroDoSRatePerSec", 25, 0, i32::MAX),
            burst: within("HiddenServiceEnableIntroDoSBurstPerSec", 200, 0, i32::MAX),
        });
        let queue = |name: &str| stated(name).map(|cells| cells.max(SHORTEST_QUEUE).unsigned_abs());
        DefenceParameters {
            circuits,
            connections,
            streams,
            introductions,
            refuses_single_hop_rendezvous: is_on("DoSRefuseSingleHopClientRendezvous"),
            queues: {
                let [to_clients, to_exits] =
                    ["circ_max_cell_queue_size", "circ_max_cell_queue_size_out"].map(queue);
                // As in tor, one value holds for both directions.
                [to_clients, to_exits.or(to_clients)]
            },
        }
    }
}

/// Shortest limit of circuit queues that a consensus can state, cells (tor: `RELAY_CIRC_CELL_QUEUE_SIZE_MIN`).
const SHORTEST_QUEUE: i32 = 50;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    fn of(stated: &[(&str, i32)]) -> DefenceParameters {
        DefenceParameters::of_consensus(|name| {
            stated.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        })
    }

    #[test]
    fn all_defences_are_off_by_default() {
        assert_eq!(of(&[]), DefenceParameters::default());
        // Parameters of a defence that is off have no effect.
        assert_eq!(of(&[("DoSConnectionMaxConcurrentCount", 5)]), DefenceParameters::default());
    }

    /// The values of `dos.h` and `hs_dos.c` of tor 0.4.9.
    #[test]
    fn defaults_are_those_of_tor() {
        let on = of(&[
            ("DoSCircuitCreationEnabled", 1),
            ("DoSConnectionEnabled", 1),
            ("DoSStreamCreationEnabled", 1),
            ("HiddenServiceEnableIntroDoSDefense", 1),
        ]);
        let (hour, day) = (Span::from_secs(3600), Span::from_secs(24 * 3600));
        let (rate, burst, refuses, closes) = (3, 90, true, true);
        let circuits =
            CircuitDefence { min_connections: 3, rate, burst, refuses, period: hour, full_queues: 3 };
        let connections = ConnectionDefence { concurrent: 100, closes, rate: 20, burst: 40, period: day };
        let streams = StreamDefence { rate: 100, burst: 300, action: StreamAction::EndStream };
        assert_eq!(on.circuits, Some(circuits));
        assert_eq!(on.connections, Some(connections));
        assert_eq!(on.streams, Some(streams));
        assert_eq!(on.introductions, Some(IntroductionLimit { rate: 25, burst: 200 }));
    }

    #[test]
    fn every_option_overrides_a_parameter_that_is_read() {
        let read = RefCell::new(BTreeSet::new());
        DefenceParameters::of_consensus(|name| {
            read.borrow_mut().insert(name.to_owned());
            name.ends_with("Enabled").then_some(1)
        });
        assert!(OPTIONS.iter().all(|(name, _)| read.borrow().contains(*name)), "{read:?}");
    }

    #[test]
    fn values_outside_of_their_ranges_count_as_the_limits() {
        let hostile = of(&[
            ("DoSCircuitCreationEnabled", 7),
            ("DoSCircuitCreationRate", -4),
            ("DoSCircuitCreationBurst", 0),
            ("DoSCircuitCreationDefenseType", 9),
            ("DoSCircuitCreationDefenseTimePeriod", i32::MIN),
            ("DoSConnectionEnabled", -1),
            ("DoSStreamCreationEnabled", 1),
            ("DoSStreamCreationDefenseType", 0),
            ("circ_max_cell_queue_size", 1),
        ]);
        let circuits = hostile.circuits.expect("it is on");
        assert_eq!((circuits.rate, circuits.burst, circuits.refuses), (1, 1, true));
        assert_eq!(circuits.period, Span::ZERO);
        assert_eq!(hostile.connections, None);
        assert_eq!(hostile.streams.map(|streams| streams.action), Some(StreamAction::Accept));
        assert_eq!(hostile.queues, [Some(50), Some(50)]);
        assert_eq!(of(&[("circ_max_cell_queue_size_out", 60)]).queues, [None, Some(60)]);
    }
}
