//! Packets of one source that are on their way: when the next may leave, over which path, what became of it.

use std::collections::BTreeMap;

use tidegate_control::paths::relay::SECOND;
use tidegate_control::paths::sender::{Memos, Path, Sender, Stamps};
use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::onion::PacketId;

/// The shortest timeout: a pause of some machine's scheduler must not look like a loss.
const SHORTEST: Span = Span::from_millis(200);
/// Packets that are remembered after their timeout.
const REMEMBERED: usize = 16_384;

/// What is on its way; each packet carries a `T` that its source wants back.
pub struct Flights<T> {
    /// Rates and round trips.
    pub sender: Sender,
    attempt_every: Span,
    next_attempt: Time,
    next_second: Time,
    /// Packets whose acknowledgement may still come.
    packets: BTreeMap<PacketId, Flight<T>>,
    /// By deadline: packets that were not timed out yet.
    deadlines: BTreeMap<(Time, PacketId), ()>,
    /// What happened so far.
    pub progress: Progress,
}

/// Counts of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Packets sent, repetitions included.
    pub sent: u64,
    /// Packets acknowledged in time.
    pub acked: u64,
    /// Packets whose timeout struck.
    pub timed_out: u64,
    /// Acknowledgements after the timeout.
    pub late: u64,
    /// Acknowledgements of packets that are not known (any more).
    pub unknown: u64,
    /// Round trip of the last acknowledged packet, seconds.
    pub round_trip: f64,
}

/// One packet.
pub struct Flight<T> {
    /// What it carries.
    pub cargo: T,
    /// Whether its timeout struck.
    pub timed_out: bool,
    sent: Time,
    deadline: Time,
    path: Path,
    memos: Memos,
}

impl<T> Flights<T> {
    /// Nothing is on its way; seconds begin at `now`.
    pub fn new(sender: Sender, attempt_every: Span, now: Time) -> Flights<T> {
        Flights {
            sender,
            attempt_every,
            next_attempt: now,
            next_second: now + SECOND,
            packets: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            progress: Progress::default(),
        }
    }

    /// When the first timeout strikes.
    pub fn next_timeout(&self) -> Time {
        self.deadlines.first_key_value().map_or(Time::NEVER, |(key, ())| key.0)
    }

    /// When the next packet may leave.
    pub fn next_attempt(&self) -> Time {
        self.next_attempt
    }

    /// Whether a packet may leave now; begins new seconds.
    pub fn may_send(&mut self, now: Time) -> bool {
        if now >= self.next_second {
            // A clock that jumped ahead begins one second, not all that were missed.
            self.next_second += SECOND * (now.since(self.next_second).0 / SECOND.0 + 1);
            self.sender.second();
        }
        now >= self.next_attempt
    }

    /// No path had rate left: when to look again.
    pub fn missed(&mut self, now: Time) {
        let wait = if self.sender.saturated() { self.next_second } else { now + self.attempt_every };
        self.next_attempt = wait;
    }

    /// A path to `to`, and with it the attempt is used.
    pub fn draw_path(&mut self, now: Time, to: Peer, random: &mut Random) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_path(to, random);
        self.drawn(now, drawn)
    }

    /// A sender path to the first relay of a receiver path.
    pub fn draw_path_into(&mut self, now: Time, entry: Peer, random: &mut Random) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_path_into(entry, random);
        self.drawn(now, drawn)
    }

    fn drawn(&mut self, now: Time, drawn: Option<(Path, Memos)>) -> Option<(Path, Memos)> {
        if drawn.is_some() {
            // Ticks that were slept through are made up for, but no more than a few at once.
            self.next_attempt = (self.next_attempt + self.attempt_every).max(now - self.attempt_every * 4);
        }
        drawn
    }

    /// A packet leaves; `timeout` is T in seconds.
    pub fn launch(&mut self, now: Time, id: PacketId, (path, memos): (Path, Memos), timeout: f64, cargo: T) {
        let deadline = now + Span::from_secs_f64(timeout).max(SHORTEST);
        self.packets.insert(id, Flight { cargo, timed_out: false, sent: now, deadline, path, memos });
        self.deadlines.insert((deadline, id), ());
        self.progress.sent += 1;
    }

    /// The packet that an acknowledgement is for, which is then done with.
    pub fn land(&mut self, id: PacketId) -> Option<Flight<T>> {
        let Some(flight) = self.packets.remove(&id) else {
            self.progress.unknown += 1;
            return None;
        };
        self.deadlines.remove(&(flight.deadline, id));
        Some(flight)
    }

    /// Tells the controller of an acknowledgement. `beyond`: for how many seconds the packet was beyond the
    /// last relay of its sender path, for a packet into a receiver path; `None` for one to a known peer.
    pub fn acked(&mut self, now: Time, flight: &Flight<T>, stamps: &[f32], beyond: Option<f32>) {
        let mut slots: Stamps = [0.0; MAX_HOPS];
        slots.iter_mut().zip(stamps).for_each(|(slot, stamp)| *slot = *stamp);
        let seconds = now.since(flight.sent).as_secs_f64();
        let (path, memos, late) = (&flight.path, &flight.memos, flight.timed_out);
        match beyond {
            None => self.sender.acked(now, path, memos, &slots, seconds, late),
            Some(beyond) => {
                self.sender.acked_into(now, path, memos, &slots, seconds, f64::from(beyond), late);
            }
        }
        *(if late { &mut self.progress.late } else { &mut self.progress.acked }) += 1;
        self.progress.round_trip = seconds;
    }

    /// Reports timeouts, hands their cargo to `lost`, and forgets packets that are so late that nobody waits
    /// for them.
    pub fn expire(&mut self, now: Time, mut lost: impl FnMut(&T)) {
        while let Some((&(deadline, id), ())) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(flight) = self.packets.get_mut(&id) else { continue };
            flight.timed_out = true;
            self.progress.timed_out += 1;
            self.sender.timed_out(now, &flight.path, &flight.memos);
            lost(&flight.cargo);
        }
        if self.packets.len() > REMEMBERED {
            self.packets.retain(|_, flight| !flight.timed_out);
        }
    }
}
