//! What the server knows of one viewer, and what it lets it carry.

use tidegate_control::paths::{Controller, Feedback, Memo};
use tidegate_control::units::{Span, Time};

use crate::Peer;
use crate::bucket::Bucket;
use crate::message::{Contact, Report};

/// A viewer.
pub struct Member {
    /// Where it is found.
    pub contact: Contact,
    /// What it says it can send, bit/s; zero for one that does not forward.
    pub claim: f64,
    /// When it was let in.
    pub joined: Time,
    /// When it was last heard of.
    pub heard: Time,
    /// The ping that is out.
    pub ping: Option<Pinged>,
    /// Since when it is asked whether it is there, because a child hears nothing from it.
    pub suspected: Option<Time>,
    /// When the next ping is due.
    pub next_ping: Time,
    /// Smoothed round trip to the server, microseconds; zero before the first pong.
    pub round_trip: f64,
    /// Its mean deviation.
    pub deviation: f64,
    /// Its last report.
    pub report: Report,
    /// Viewers whose contact it was given, the last ones.
    pub met: Vec<Peer>,
    /// What it may ask to be repaired.
    pub repairs: Bucket,
    controller: Box<dyn Controller>,
    /// What the trees let it carry at most after it was found to carry less, bit/s.
    ceiling: f64,
    /// When the ceiling was last lowered.
    lowered: Time,
    /// What exploration showed, bit/s, smoothed over seconds.
    learnt: f64,
    /// Whether exploration once showed as much as was believed without it.
    proven: bool,
    /// Until when it is a leaf.
    leaf_until: Time,
    term: Span,
}

/// A ping on its way.
#[derive(Clone, Copy, Debug)]
pub struct Pinged {
    /// Its number.
    pub number: u32,
    /// When it left.
    pub sent: Time,
    /// The slice of the packet that it asks about.
    pub slice: usize,
    /// The digest that an honest pong has; zero if it asks about none.
    pub digest: u64,
}

/// A new viewer's claim is believed up to so many times the stream's rate before exploration shows as much.
const TRUST: f64 = 2.0;
/// What an answer may wait for in uplinks that are full, besides the round trip.
const ANSWER: Span = Span::from_millis(250);
/// How fast what exploration shows may fall, per second.
const SMOOTH: f64 = 0.15;
/// Complaints within this time are about the same overload.
const ONCE: Span = Span::from_secs(4);
/// What a complaint leaves of what a viewer carried.
const LOWER: f64 = 0.85;
/// A ceiling is raised by a tenth after so long without complaint.
const RAISE: Span = Span::from_secs(20);
/// The first term as a leaf; each further one is twice as long.
const TERM: Span = Span::from_secs(60);
const LONGEST_TERM: Span = Span::from_secs(3600);

impl Member {
    /// A viewer that was just let in.
    pub fn new(now: Time, contact: Contact, claim: f64, controller: Box<dyn Controller>) -> Member {
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

    /// What its controller wants to remember of a packet that goes through it now.
    pub fn memo(&self) -> Memo {
        self.controller.memo(0)
    }

    /// What became of a packet through it.
    pub fn feedback(&mut self, now: Time, memo: Memo, feedback: Feedback) {
        self.controller.feedback(now, 0, memo, feedback);
    }

    /// A ping took `sample` microseconds to it and back (RFC 6298's smoothing).
    pub fn pong(&mut self, sample: f64) {
        if self.round_trip == 0.0 {
            (self.round_trip, self.deviation) = (sample, sample / 2.0);
        }
        self.suspected = None;
        self.deviation += 0.25 * ((sample - self.round_trip).abs() - self.deviation);
        self.round_trip += 0.2 * (sample - self.round_trip);
    }

    /// How long it may take to answer, when round trips vary by `uneven`.
    pub fn timeout(&self, uneven: Span) -> Span {
        let spread = uneven.max(Span::from_micros(self.deviation as u64));
        ANSWER + Span::from_micros(self.round_trip as u64) + spread * 4
    }

    /// A second is over.
    pub fn second(&mut self) {
        // A controller falls at every loss and rises at the next success; trees should not.
        let rate = self.controller.rate(0) * 8.0;
        self.learnt += if rate > self.learnt { rate - self.learnt } else { SMOOTH * (rate - self.learnt) };
    }

    /// It did not deliver `carried` bit/s.
    pub fn fell_short(&mut self, now: Time, carried: f64) {
        let memo = self.memo();
        self.feedback(now, memo, Feedback::TimedOut);
        // What one overload brings of complaints counts once.
        if now.since(self.lowered) > ONCE || self.ceiling.is_infinite() {
            self.ceiling = self.ceiling.min(carried * LOWER);
            self.lowered = now;
        }
    }

    /// It is a leaf for a while.
    pub fn relegate(&mut self, now: Time) {
        if now >= self.leaf_until {
            self.leaf_until = now + self.term;
            self.term = (self.term * 2).min(LONGEST_TERM);
        }
    }

    /// Whether it is a leaf for what it did.
    pub fn is_relegated(&self, now: Time) -> bool {
        now < self.leaf_until
    }

    /// What the trees may let it carry, bit/s: the least of what it claims, what exploration showed, and what
    /// it was seen to carry. `stream` is the stream's rate, `slice` what a child over one slice takes.
    pub fn allowance(&mut self, now: Time, stream: f64, slice: f64) -> f64 {
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
