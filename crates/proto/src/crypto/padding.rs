//! Padding of idle connections (padding-spec, "Connection-level padding"): routers on the way then record a connection as
//! one flow, however its user pauses.
//!
//! The rules are those of tor's `channelpadding.c`. Both ends of a connection pad it after a random pause, so that a relay
//! and its client together pad once in about five seconds.

use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use super::wire::{self, command};

/// The link protocol from which on nodes understand padding.
pub const SINCE_VERSION: u16 = 5;
/// Version of PADDING_NEGOTIATE cells.
const VERSION: u8 = 0;
/// Command of a PADDING_NEGOTIATE cell that asks for padding; any other stops it.
const START: u8 = 2;
/// Longest pause that a consensus can state, in milliseconds.
const LONGEST: i32 = 60_000;

/// Shortest and longest pause before a connection is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pauses {
    low: Span,
    high: Span,
}

/// When the relays of a network pad connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    pauses: Pauses,
    /// Relays pad connections with relays, too.
    relays: bool,
}

impl Padding {
    /// Reads the parameters `nf_ito_low`, `nf_ito_high` (milliseconds) and `nf_pad_relays` of a consensus. `stated` looks one
    /// up by name. Values outside of tor's ranges count as the nearest limit, and missing ones as tor's defaults.
    pub fn of_consensus(stated: impl Fn(&str) -> Option<i32>) -> Padding {
        let within = |name: &str, default: i32, low: i32| stated(name).unwrap_or(default).clamp(low, LONGEST);
        let low = within("nf_ito_low", 1500, 0);
        let high = within("nf_ito_high", 9500, low);
        let span = |ms: i32| Span::from_millis(u64::from(ms.unsigned_abs()));
        Padding {
            pauses: Pauses { low: span(low), high: span(high) },
            relays: stated("nf_pad_relays").is_some_and(|value| value > 0),
        }
    }

    /// Padding of a connection with a neighbour that understands it; `None` if the relay does not pad it.
    pub fn of_link(self, with_relay: bool, random: Random) -> Option<LinkPadding> {
        (self.relays || !with_relay).then_some(LinkPadding {
            network: self.pauses,
            pauses: self.pauses,
            used: false,
            stopped: false,
            drawn: None,
            random,
        })
    }
}

/// Padding of a connection by its relay.
#[derive(Debug)]
pub struct LinkPadding {
    network: Pauses,
    pauses: Pauses,
    /// A circuit of several hops uses the connection.
    used: bool,
    stopped: bool,
    /// When the connection was last active, and how long it pauses since.
    drawn: Option<(Time, Span)>,
    random: Random,
}

impl LinkPadding {
    /// A circuit of several hops uses the connection from now on. Others, which fetch from directories, are not padded.
    pub fn used(&mut self) {
        self.used = true;
    }

    /// When the next padding leaves, unless the connection is active again before; `active`: when it last was.
    pub fn due(&mut self, active: Time) -> Option<Time> {
        if self.stopped || !self.used || self.network.high == Span::ZERO {
            return None;
        }
        if self.drawn.is_none_or(|(since, _)| since != active) {
            let Pauses { low, high } = self.pauses;
            // The shorter pause of two ends is then near the middle of the range.
            let share = self.random.unit().max(self.random.unit());
            let above = Span((share * (high - low).0 as f64) as u64);
            self.drawn = Some((active, low + above));
        }
        self.drawn.map(|(since, pause)| since + pause)
    }

    /// Obeys the body of a PADDING_NEGOTIATE cell. The network's pauses are the least.
    pub fn negotiate(&mut self, body: &[u8]) {
        let [VERSION, asked, a, b, c, d, ..] = *body else { return };
        let span = |high, low| Span::from_millis(u64::from(u16::from_be_bytes([high, low])));
        self.stopped = asked != START;
        let low = span(a, b).max(self.network.low);
        self.pauses = Pauses { low, high: span(c, d).max(self.network.high).max(low) };
        self.drawn = None;
    }

    /// Appends a cell of padding.
    pub fn write(wire: &mut Vec<u8>) {
        wire::write(command::PADDING, &[], wire);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    fn ms(ms: u64) -> Span {
        Span::from_millis(ms)
    }

    fn link(padding: Padding) -> LinkPadding {
        let mut link =
            padding.of_link(false, Seed::root(1).random()).expect("a client's connection is padded");
        link.used();
        link
    }

    /// Shortest, mean and longest of many pauses, in milliseconds.
    fn pauses(link: &mut LinkPadding) -> [f64; 3] {
        let active = |number| Time::ZERO + ms(100_000) * number;
        let drawn =
            |number| link.due(active(number)).expect("it is padded").since(active(number)).as_secs_f64();
        let drawn: Vec<f64> = (1..=20_000).map(drawn).collect();
        let (low, high) =
            (drawn.iter().copied().fold(f64::MAX, f64::min), drawn.iter().copied().fold(0.0, f64::max));
        [low, drawn.iter().sum::<f64>() / drawn.len() as f64, high].map(|seconds| (1e3 * seconds).round())
    }

    #[test]
    fn pauses_are_those_of_tor() {
        // The comment in `channelpadding.c`: with R = 8000, the mean is 5332.8 above the shortest pause.
        let [low, mean, high] = pauses(&mut link(Padding::of_consensus(|_| None)));
        assert!((1500.0..1600.0).contains(&low) && high > 9490.0 && high <= 9500.0, "{low} to {high}");
        assert!((mean - 1500.0 - 5332.8).abs() < 40.0, "{mean}");
        let equal = |name: &str| name.starts_with("nf_ito").then_some(100);
        assert_eq!(pauses(&mut link(Padding::of_consensus(equal))), [100.0; 3]);
        let none = |name: &str| name.starts_with("nf_ito").then_some(0);
        assert_eq!(
            link(Padding::of_consensus(none)).due(Time::ZERO),
            None,
            "the consensus switches padding off"
        );
        // The longest pause is not below the shortest.
        let high = |name: &str| (name == "nf_ito_low").then_some(20_000);
        assert_eq!(pauses(&mut link(Padding::of_consensus(high))), [20_000.0; 3]);
    }

    #[test]
    fn clients_stop_start_and_slow_padding() {
        let mut link = link(Padding::of_consensus(|_| None));
        let drawn = link.due(Time::ZERO).unwrap();
        assert_eq!(link.due(Time::ZERO), Some(drawn), "drawn once");
        link.negotiate(&[1, 1, 0, 0, 0, 0]);
        assert_eq!(link.due(Time::ZERO), Some(drawn), "an unknown version has no effect");
        link.negotiate(&[0, 1, 0, 0, 0, 0]);
        assert_eq!(link.due(Time::ZERO), None);
        link.negotiate(&[0, 2, 0, 0, 0, 1]);
        let [low, _, high] = pauses(&mut link);
        assert!(low >= 1500.0 && high <= 9500.0, "no faster than the network: {low} to {high}");
        // Reduced padding: 9 to 14 s.
        let [a, b, c, d] = [9000_u16, 14_000].map(u16::to_be_bytes).concat()[..] else { unreachable!() };
        link.negotiate(&[0, 2, a, b, c, d]);
        let [low, _, high] = pauses(&mut link);
        assert!(low >= 9000.0 && high > 13_990.0 && high <= 14_000.0, "{low} to {high}");
        link.negotiate(&[]);
    }

    #[test]
    fn padding_needs_a_client_and_a_circuit() {
        let of = |with_relay, relays: Option<i32>| {
            let stated = |name: &str| relays.filter(|_| name == "nf_pad_relays");
            Padding::of_consensus(stated).of_link(with_relay, Seed::root(1).random())
        };
        assert!(of(true, None).is_none());
        assert!(of(true, Some(1)).is_some(), "the consensus asks for it");
        assert_eq!(of(false, None).unwrap().due(Time::ZERO), None, "before a circuit");
    }
}
