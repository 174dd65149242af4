//! Packets of one source that are on their way: when the next may leave, over which path, what became of it.

use std::collections::BTreeMap;

use tidegate_control::paths::relay::SECOND;
use tidegate_control::paths::sender::{Memos, Path, Sender, Stamps};
use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::wire::PacketId;

/// The shortest timeout: a pause of some machine's scheduler must not look like a loss.
const SHORTEST: Span = Span::from_millis(200);
/// The shortest pause before rates are looked at again.
const SOON: Span = Span::from_millis(1);
/// How late timers of an operating system may be without slowing a source down.
const TICK: Span = Span::from_millis(2);
/// Packets that are remembered after their timeout.
const REMEMBERED: usize = 16_384;

/// What is on its way; each packet carries a `T` that its source wants back.
pub struct Flights<T> {
    /// Rates and round trips.
    pub sender: Sender,
    attempt_every: Span,
    /// The pause after a packet: at least `attempt_every`.
    gap: Span,
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
    /// Packets that a relay refused.
    pub refused: u64,
    /// Round trip of the last acknowledged packet, seconds.
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

/// What the round trip of an acknowledged packet measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measures {
    /// All links of its path.
    Path,
    /// The links of its sender path, but for so many seconds that it was beyond the last relay of that.
    Beyond(f32),
    /// No link: cells do not say where the time went.
    Nothing,
}

/// One packet.
pub struct Flight<T> {
    /// What it carries.
    pub cargo: T,
    /// Whether its timeout struck.
    pub timed_out: bool,
    /// When it left.
    pub sent: Time,
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
            gap: attempt_every,
            next_attempt: now,
            next_second: now + SECOND,
            packets: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            progress: Progress::default(),
        }
    }

    /// Packets on their way that were neither answered nor given up.
    pub fn flying(&self) -> usize {
        self.deadlines.len()
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
        let soon = now + self.attempt_every.max(SOON);
        let wait = if self.sender.saturated() { self.next_second } else { soon.min(self.next_second) };
        self.next_attempt = wait;
    }

    /// Packets should leave at about this many per second rather than as fast as rates allow and then none.
    pub fn set_pace(&mut self, per_s: f64) {
        self.gap = Span::from_secs_f64(1.0 / per_s.max(1.0)).max(self.attempt_every);
    }

    /// Rates have changed: looks at them again even if all were used up.
    pub fn retry(&mut self, now: Time) {
        self.next_attempt = self.next_attempt.min(now + self.gap);
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

    /// A path that was drawn before.
    pub fn draw_again(&mut self, now: Time, path: Path) -> Option<(Path, Memos)> {
        let drawn = self.sender.draw_again(&path).map(|memos| (path, memos));
        self.drawn(now, drawn)
    }

    fn drawn(&mut self, now: Time, drawn: Option<(Path, Memos)>) -> Option<(Path, Memos)> {
        if drawn.is_some() {
            // Ticks that were slept through are made up for, but no more than a few at once.
            let most = (self.gap * 4).max(TICK);
            self.next_attempt = (self.next_attempt + self.gap).max(now - most);
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

    /// Whether a packet is on its way or remembered.
    pub fn knows(&self, id: &PacketId) -> bool {
        self.packets.contains_key(id)
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

    /// Tells the controller of an acknowledgement.
    pub fn acked(&mut self, now: Time, flight: &Flight<T>, stamps: &[f32], measures: Measures) {
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

    /// Tells the controller that relay number `refuser` of the path (1 is the first), which offers a rate,
    /// dropped a packet.
    pub fn refused(&mut self, now: Time, flight: &Flight<T>, refuser: usize, offer: f32) {
        self.progress.refused += 1;
        if !flight.timed_out {
            let mut stamps = [0.0; MAX_HOPS];
            stamps[refuser - 1] = offer;
            self.sender.refused(now, &flight.path, &flight.memos, &stamps, refuser);
        }
    }

    /// Reports timeouts, hands them to `lost`, and forgets packets that are so late that nobody waits
    /// for them.
    pub fn expire(&mut self, now: Time, mut lost: impl FnMut(&Flight<T>)) {
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
