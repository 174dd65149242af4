//! State of a viewer at the server, and the load it may carry.

use tidegate_control::paths::{Controller, Feedback, Memo};
use tidegate_control::units::{Span, Time};

use crate::Peer;
use crate::bucket::Bucket;
use crate::message::{Contact, Report};

/// An admitted viewer.
pub struct Member {
    /// Its address and certificate.
    pub contact: Contact,
    /// The uplink that it claims, bit/s; zero if it does not forward.
    pub claim: f64,
    /// Time of admission.
    pub joined: Time,
    /// Time of its last message.
    pub heard: Time,
    /// The unanswered ping.
    pub ping: Option<Pinged>,
    /// Start of the probe after a child reported silence.
    pub suspected: Option<Time>,
    /// When the next ping is due.
    pub next_ping: Time,
    /// Smoothed round-trip time to the server, microseconds; zero before the first pong.
    pub round_trip: f64,
    /// Mean deviation of the round-trip time.
    pub deviation: f64,
    /// The last report.
    pub report: Report,
    /// Viewers that it was introduced to, the oldest first.
    pub met: Vec<Peer>,
    /// Limits its requests for repairs.
    pub repairs: Bucket,
    controller: Box<dyn Controller>,
    /// Maximum load after complaints, bit/s.
    ceiling: f64,
    /// When the ceiling last changed.
    lowered: Time,
    /// Bandwidth that exploration showed, bit/s, smoothed over seconds.
    learnt: f64,
    /// Whether exploration once confirmed the initial trust.
    proven: bool,
    /// End of its demotion to a leaf.
    leaf_until: Time,
    term: Span,
}

/// An unanswered ping.
#[derive(Clone, Copy, Debug)]
pub struct Pinged {
    /// Number of the ping.
    pub number: u32,
    /// When it left.
    pub sent: Time,
}

/// Trust in an unconfirmed claim, as a multiple of the stream's rate.
const TRUST: f64 = 2.0;
/// Time that an answer may spend in full uplinks, in addition to the round trip.
const ANSWER: Span = Span::from_millis(250);
/// Weight of the last second when the explored bandwidth falls.
const SMOOTH: f64 = 0.15;
/// Complaints within this time concern the same overload.
const ONCE: Span = Span::from_secs(4);
/// Share of the carried load that a complaint leaves.
const LOWER: f64 = 0.85;
/// The ceiling rises by a tenth after this time without a complaint.
const RAISE: Span = Span::from_secs(20);
/// First and longest demotion to a leaf. Each one lasts twice as long as the last.
const TERM: Span = Span::from_secs(60);
const LONGEST_TERM: Span = Span::from_secs(3600);

impl Member {
    /// A new viewer.
    pub(crate) fn new(now: Time, contact: Contact, claim: f64, controller: Box<dyn Controller>) -> Member {
        Member {
            contact,
            claim,
            joined: now,
            heard: now,
            ping: None,
            suspected: None,
            next_ping: now,
            round_trip: 0.0,
            deviation: 0.0,
            report: Report::default(),
            met: Vec::new(),
            repairs: Bucket::FULL,
            controller,
            ceiling: f64::INFINITY,
            lowered: now,
            learnt: 0.0,
            proven: false,
            leaf_until: Time::ZERO,
            term: TERM,
        }
    }

    /// The controller's memo for a packet that passes this viewer now.
    pub(crate) fn memo(&self) -> Memo {
        self.controller.memo(0)
    }

    /// Reports the result of a packet to the controller.
    pub(crate) fn feedback(&mut self, now: Time, memo: Memo, feedback: Feedback) {
        self.controller.feedback(now, 0, memo, feedback);
    }

    /// Handles a pong after `sample` microseconds (smoothing of RFC 6298).
    pub(crate) fn pong(&mut self, sample: f64) {
        if self.round_trip == 0.0 {
            (self.round_trip, self.deviation) = (sample, sample / 2.0);
        }
        self.suspected = None;
        self.deviation += 0.25 * ((sample - self.round_trip).abs() - self.deviation);
        self.round_trip += 0.2 * (sample - self.round_trip);
    }

    /// Timeout of an answer when round trips vary by `uneven`.
    pub(crate) fn timeout(&self, uneven: Span) -> Span {
        let spread = uneven.max(Span::from_micros(self.deviation as u64));
        ANSWER + Span::from_micros(self.round_trip as u64) + spread * 4
    }

    /// Updates the smoothed bandwidth, once per second.
    pub(crate) fn second(&mut self) {
        // The controller falls at every loss and rises at the next success, but trees should stay stable.
        let rate = self.controller.rate(0) * 8.0;
        self.learnt += if rate > self.learnt { rate - self.learnt } else { SMOOTH * (rate - self.learnt) };
    }

    /// Lowers the ceiling because the viewer did not deliver `carried` bit/s.
    pub(crate) fn fell_short(&mut self, now: Time, carried: f64) {
        let memo = self.memo();
        self.feedback(now, memo, Feedback::TimedOut);
        // One overload causes several complaints, which count once.
        if now.since(self.lowered) > ONCE || self.ceiling.is_infinite() {
            self.ceiling = self.ceiling.min(carried * LOWER);
            self.lowered = now;
        }
    }

    /// Makes the viewer a leaf for a while.
    pub(crate) fn relegate(&mut self, now: Time) {
        if now >= self.leaf_until {
            self.leaf_until = now + self.term;
            self.term = (self.term * 2).min(LONGEST_TERM);
        }
    }

    /// Whether it is a leaf because of its faults.
    pub(crate) fn is_relegated(&self, now: Time) -> bool {
        now < self.leaf_until
    }

    /// The load that the trees may put on it, bit/s.
    ///
    /// This is the least of its claim, the explored bandwidth and the ceiling. `stream` is the rate of the stream,
    /// `slice` that of one slice to one child.
    pub(crate) fn allowance(&mut self, now: Time, stream: f64, slice: f64) -> f64 {
        if self.is_relegated(now) {
            return 0.0;
        }
        if now.since(self.lowered) > RAISE && self.ceiling.is_finite() {
            self.ceiling = (self.ceiling * 1.1).max(slice);
            self.lowered = now;
            if self.ceiling > self.claim {
                self.ceiling = f64::INFINITY;
            }
        }
        let trusted = TRUST * stream;
        self.proven |= self.learnt >= trusted.min(self.claim);
        let believed = if self.proven { self.learnt } else { self.learnt.max(trusted) };
        self.claim.min(believed).min(self.ceiling)
    }
}

/// The viewers by number.
pub(crate) struct Members(Vec<Option<Member>>);

impl Members {
    /// No viewers, with room for numbers below `peers`.
    pub(crate) fn new(peers: usize) -> Members {
        Members((0..peers).map(|_| None).collect())
    }

    /// A viewer; `None` for other numbers.
    pub(crate) fn get(&self, peer: Peer) -> Option<&Member> {
        self.0.get(usize::from(peer))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, peer: Peer) -> Option<&mut Member> {
        self.0.get_mut(usize::from(peer))?.as_mut()
    }

    pub(crate) fn insert(&mut self, peer: Peer, member: Member) {
        self.0[usize::from(peer)] = Some(member);
    }

    pub(crate) fn remove(&mut self, peer: Peer) -> Option<Member> {
        self.0.get_mut(usize::from(peer))?.take()
    }
}
