//! Packets in flight of one source: pacing, paths, acknowledgements and timeouts.

use std::collections::BTreeMap;

use tidegate_control::paths::relay::SECOND;
use tidegate_control::paths::{MAX_HOPS, Memos, Path, Peer, Sender, Stamps};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::wire::PacketId;

/// Shortest timeout; longer than a pause by an operating system's scheduler.
const SHORTEST: Span = Span::from_millis(200);
/// Shortest pause before the source looks at the rates again.
const SOON: Span = Span::from_millis(1);
/// Delay of an operating system's timer that does not slow down a source.
const TICK: Span = Span::from_millis(2);
/// Maximum number of packets that are remembered after their timeout.
const REMEMBERED: usize = 16_384;

/// Packets in flight, each with a cargo `T` of the source.
pub(crate) struct Flights<T> {
    /// Rates and round-trip times.
    pub sender: Sender,
    attempt_every: Span,
    /// Pause after a packet, at least `attempt_every`.
    gap: Span,
    next_attempt: Time,
    next_second: Time,
    /// Packets that an acknowledgement may still answer.
    packets: BTreeMap<PacketId, Flight<T>>,
    /// Packets without a timeout so far, by deadline.
    deadlines: BTreeMap<(Time, PacketId), ()>,
    /// Counters since the start.
    pub progress: Progress,
}

/// Counters of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Sent packets, including retransmissions.
    pub sent: u64,
    /// Packets that were acknowledged in time.
    pub acked: u64,
    /// Packets that timed out.
    pub timed_out: u64,
    /// Acknowledgements after the timeout.
    pub late: u64,
    /// Acknowledgements of unknown packets.
    pub unknown: u64,
    /// Packets that a relay refused.
    pub refused: u64,
    /// Round-trip time of the last acknowledged packet, seconds.
    pub round_trip: f64,
}

impl std::ops::Add for Progress {
    type Output = Progress;
    fn add(self, other: Progress) -> Progress {
        Progress {
            sent: self.sent + other.sent,
            acked: self.acked + other.acked,
            timed_out: self.timed_out + other.timed_out,
            late: self.late + other.late,
            unknown: self.unknown + other.unknown,
            refused: self.refused + other.refused,
            round_trip: self.round_trip.max(other.round_trip),
        }
    }
}

/// The links that a round-trip time measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Measures {
    /// All links of the path.
    Path,
    /// The links of the sender path, after subtracting the seconds spent beyond its last relay.
    Beyond(f32),
    /// None: cells do not show where time was spent.
    Nothing,
}

/// A packet in flight.
pub(crate) struct Flight<T> {
    /// Its cargo.
    pub cargo: T,
    /// Whether it timed out.
    pub timed_out: bool,
    /// When it left.
    pub sent: Time,
    deadline: Time,
    path: Path,
    memos: Memos,
}

impl<T> Flights<T> {
    /// No packets in flight. Seconds start at `now`.
    pub(crate) fn new(sender: Sender, attempt_every: Span, now: Time) -> Flights<T> {
        Flights {
            sender,
            attempt_every,
            gap: attempt_every,
            next_attempt: now,
            next_second: now + SECOND,
            packets: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            progress: Progress::default(),
        }
    }

    /// Number of packets without an answer or timeout.
    pub(crate) fn flying(&self) -> usize {
        self.deadlines.len()
    }

    /// Time of the first timeout.
    pub(crate) fn next_timeout(&self) -> Time {
        self.deadlines.first_key_value().map_or(Time::NEVER, |(key, ())| key.0)
    }

    /// When the next packet may leave.
    pub(crate) fn next_attempt(&self) -> Time {
        self.next_attempt
    }

    /// Whether a packet may leave now. Also starts new seconds.
    pub(crate) fn may_send(&mut self, now: Time) -> bool {
        if now >= self.next_second {
            // After a jump of the clock, only one second starts.
            self.next_second += SECOND * (now.since(self.next_second).0 / SECOND.0 + 1);
            self.sender.second();
        }
        now >= self.next_attempt
    }

    /// Schedules the next attempt because no path had rate left.
    pub(crate) fn missed(&mut self, now: Time) {
        let soon = now + self.attempt_every.max(SOON);
        let wait = if self.sender.saturated() { self.next_second } else { soon.min(self.next_second) };
        self.next_attempt = wait;
    }

    /// Spaces packets for `per_s` packets per second, instead of a burst in each second.
    pub(crate) fn set_pace(&mut self, per_s: f64) {
        self.gap = Span::from_secs_f64(1.0 / per_s.max(1.0)).max(self.attempt_every);
    }

    /// Schedules an attempt because rates changed.
    pub(crate) fn retry(&mut self, now: Time) {
        self.next_attempt = self.next_attempt.min(now + self.gap);
    }

    /// Draws a path to `to` and schedules the next attempt.
    pub(crate) fn draw_path(&mut self, now: Time, to: Peer, random: &mut Random) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_path(to, random);
        self.drawn(now, drawn)
    }

    /// Draws a sender path to the first relay of a receiver path.
    pub(crate) fn draw_path_into(
        &mut self,
        now: Time,
        entry: Peer,
        random: &mut Random,
    ) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_path_into(entry, random);
        self.drawn(now, drawn)
    }

    /// Reserves rates on a path that was drawn before.
    pub(crate) fn draw_again(&mut self, now: Time, path: Path) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_again(&path).map(|memos| (path, memos));
        self.drawn(now, drawn)
    }

    fn drawn(&mut self, now: Time, drawn: Option<(Path, Memos)>) -> Option<(Path, Memos)> {
        if drawn.is_some() {
            // Missed ticks are caught up, but only a few at once.
            let most = (self.gap * 4).max(TICK);
            self.next_attempt = (self.next_attempt + self.gap).max(now - most);
        }
        drawn
    }

    /// Records a sent packet. `timeout` is the thesis' T in seconds.
    pub(crate) fn launch(
        &mut self,
        now: Time,
        id: PacketId,
        (path, memos): (Path, Memos),
        timeout: f64,
        cargo: T,
    ) {
        let deadline = now + Span::from_secs_f64(timeout).max(SHORTEST);
        self.packets.insert(id, Flight { cargo, timed_out: false, sent: now, deadline, path, memos });
        self.deadlines.insert((deadline, id), ());
        self.progress.sent += 1;
    }

    /// Whether a packet is in flight or remembered.
    pub(crate) fn knows(&self, id: &PacketId) -> bool {
        self.packets.contains_key(id)
    }

    /// Removes and returns the packet of an acknowledgement.
    pub(crate) fn land(&mut self, id: PacketId) -> Option<Flight<T>> {
        let Some(flight) = self.packets.remove(&id) else {
            self.progress.unknown += 1;
            return None;
        };
        self.deadlines.remove(&(flight.deadline, id));
        Some(flight)
    }

    /// Reports an acknowledgement to the controller.
    pub(crate) fn acked(&mut self, now: Time, flight: &Flight<T>, stamps: &[f32], measures: Measures) {
        let slots = slots(stamps);
        let seconds = now.since(flight.sent).as_secs_f64();
        let (path, memos, late) = (&flight.path, &flight.memos, flight.timed_out);
        match measures {
            Measures::Path => self.sender.acked(now, path, memos, &slots, seconds, late),
            Measures::Beyond(beyond) => {
                self.sender.acked_into(now, path, memos, &slots, seconds, f64::from(beyond), late);
            }
            Measures::Nothing if late => {}
            Measures::Nothing => self.sender.reward(now, path, memos, &slots),
        }
        *(if late { &mut self.progress.late } else { &mut self.progress.acked }) += 1;
        self.progress.round_trip = seconds;
    }

    /// Reports to the controller that a relay dropped a packet.
    ///
    /// `refuser` is its position on the path (1 is the first), `offer` the rate that it offers.
    pub(crate) fn refused(&mut self, now: Time, flight: &Flight<T>, refuser: usize, offer: f32) {
        self.progress.refused += 1;
        if !flight.timed_out {
            let mut stamps = [0.0; MAX_HOPS];
            stamps[refuser - 1] = offer;
            self.sender.refused(now, &flight.path, &flight.memos, &stamps, refuser);
        }
    }

    /// Handles timeouts, passes the packets to `lost`, and drops old packets.
    pub(crate) fn expire(&mut self, now: Time, mut lost: impl FnMut(&Flight<T>)) {
        while let Some((&(deadline, id), ())) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(flight) = self.packets.get_mut(&id) else { continue };
            flight.timed_out = true;
            self.progress.timed_out += 1;
            self.sender.timed_out(now, &flight.path, &flight.memos);
            lost(flight);
        }
        if self.packets.len() > REMEMBERED {
            self.packets.retain(|_, flight| !flight.timed_out);
        }
    }
}

fn slots(stamps: &[f32]) -> Stamps {
    let mut slots = [0.0; MAX_HOPS];
    slots.iter_mut().zip(stamps).for_each(|(slot, stamp)| *slot = *stamp);
    slots
}
