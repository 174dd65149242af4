//! Schedules what a relay forwards during a measurement, under one rate limit.
//!
//! This is the "separate cell scheduler" of section 4.1. Background goes first, but during a measurement only
//! up to `y = x r / (1 - r)` per round, with the measurement traffic `x` floored at 10 Mbit/s (proposal 316).
//! Measurement connections take turns. All numbers are bytes of cells.

use std::net::IpAddr;

use tidegate_control::flashflow::Percent;
use tidegate_control::turns::{Sharing, Turns};
use tidegate_control::units::{Rate, Span, Time};

use super::cell::CELL;
use crate::bucket::{BucketPlan, TokenBucket};

/// A scheduling round.
const ROUND: Span = Span::from_millis(10);
/// Floor of the measurement traffic from which the background limit is computed.
const FLOOR: Rate = Rate(10_000_000);
/// Number of rounds for which unused background credit is kept.
const KEPT_ROUNDS: u64 = 10;

/// Burst in the first second of a measurement, as in tor's bucket.
///
/// What is unused after that second lapses, and the burst shrinks to [`SAVED`]. Otherwise a relay that its
/// processor holds near its limit would spend the burst bit by bit, and show 10 % more than its limit for ten
/// seconds.
const BURST: Span = Span::from_secs(1);
/// Burst during the rest of a measurement, see [`BURST`].
const SAVED: Span = Span::from_millis(200);

/// Class of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ordinary circuits.
    Background,
    /// Measurement circuits.
    Measurement,
}

/// Permission to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<Who> {
    /// The connection.
    pub who: Who,
    /// Class of the request.
    pub class: Class,
    /// Granted bytes, a multiple of [`CELL`]; the rest must be requested again.
    pub bytes: u64,
}

/// The scheduler. `Who` names a connection.
#[derive(Debug)]
pub struct Pace<Who> {
    bucket: Option<TokenBucket>,
    /// Rate limit in bytes per second, if there is one.
    rate: u64,
    /// Bursts: at the start of a measurement, and after it lapsed.
    bursts: [Span; 2],
    /// Time at which the first burst lapses.
    lapse: Time,
    cap: Option<Cap>,
    background: Turns<IpAddr, (Who, u64)>,
    measurement: Turns<IpAddr, (Who, u64)>,
}

#[derive(Debug)]
struct Cap {
    ratio: Percent,
    /// Background bytes that may pass.
    credit: u64,
    round: Time,
    /// Measurement bytes granted in this round.
    measured: u64,
}

impl Cap {
    fn advance(&mut self, now: Time) {
        let floor = FLOOR.0 / 8 * ROUND.0 / 1_000_000_000;
        let rounds = now.since(self.round).0 / ROUND.0;
        for _ in 0..rounds.min(KEPT_ROUNDS) {
            let earned = self.ratio.background_for(self.measured.max(floor));
            self.credit = self.credit.min(earned.saturating_mul(KEPT_ROUNDS - 1)).saturating_add(earned);
            self.measured = 0;
        }
        self.round += ROUND * rounds;
    }
}

fn burst_bytes(rate: u64, span: Span) -> u64 {
    (rate * (span.0 / 1_000_000) / 1000).max(CELL as u64)
}

impl<Who: Copy + PartialEq> Pace<Who> {
    /// A relay with a rate limit and a burst of one second, tor's default.
    pub fn new(limit: Rate) -> Pace<Who> {
        Pace::with_bursts(limit, [BURST, SAVED])
    }

    /// A relay without a burst, like a processor that decrypts at most at `limit`.
    pub fn without_burst(limit: Rate) -> Pace<Who> {
        // Two rounds, so that the rest of a round's last cell is not lost.
        Pace::with_bursts(limit, [ROUND * 2; 2])
    }

    fn with_bursts(limit: Rate, bursts: [Span; 2]) -> Pace<Who> {
        let bytes = limit.0 / 8;
        let bucket = (limit != Rate::UNLIMITED).then(|| {
            TokenBucket::new(BucketPlan {
                rate_bytes_per_s: bytes,
                burst_bytes: burst_bytes(bytes, bursts[0]),
                refill_every: ROUND,
                drop_fractions: false,
            })
        });
        Pace {
            bucket,
            rate: bytes,
            bursts,
            lapse: Time::NEVER,
            cap: None,
            background: Turns::default(),
            measurement: Turns::default(),
        }
    }

    /// Replaces the rate limit. The new bucket starts empty, so that changes do not give bursts.
    pub fn set_limit(&mut self, now: Time, limit: Rate) {
        let fresh = Pace::<Who>::with_bursts(limit, self.bursts);
        (self.bucket, self.rate) = (fresh.bucket, fresh.rate);
        self.forwarded_lately(now, 0);
    }

    /// Reduces the burst to `left` bytes, because the relay forwarded traffic just before.
    pub fn forwarded_lately(&mut self, now: Time, left: u64) {
        if let Some(bucket) = &mut self.bucket {
            let spent = bucket.available(now).saturating_sub(left);
            bucket.take(spent);
        }
    }

    /// A measurement began: background is limited from now on.
    pub fn measuring(&mut self, now: Time, ratio: Percent) {
        self.cap = Some(Cap { ratio, credit: 0, round: now, measured: 0 });
        self.lapse = now + BURST;
    }

    /// The measurement ended: background is unlimited, and requests of measurement circuits are dropped.
    pub fn idle(&mut self) {
        self.cap = None;
        self.measurement.clear();
        self.limit_burst(self.bursts[0]);
    }

    /// Requests to forward `bytes`. Each connection has one request at a time; whole cells are granted.
    pub fn request(&mut self, class: Class, who: Who, bytes: u64) {
        self.request_from(None, class, who, bytes);
    }

    /// As [`request`](Self::request), for a connection that shares its turns with all others of its group.
    pub fn request_from(&mut self, group: Option<Sharing<IpAddr>>, class: Class, who: Who, bytes: u64) {
        self.queue(class).wait(group, (who, bytes));
    }

    /// Withdraws the request of a connection that is gone.
    pub fn withdraw(&mut self, class: Class, who: Who) {
        self.queue(class).retain(|(other, _)| *other != who);
    }

    fn queue(&mut self, class: Class) -> &mut Turns<IpAddr, (Who, u64)> {
        match class {
            Class::Background => &mut self.background,
            Class::Measurement => &mut self.measurement,
        }
    }

    fn limit_burst(&mut self, span: Span) {
        self.lapse = Time::NEVER;
        if let Some(bucket) = &mut self.bucket {
            bucket.limit_burst(burst_bytes(self.rate, span));
        }
    }

    /// Returns the next grant, if one is possible now.
    pub fn poll(&mut self, now: Time) -> Option<Grant<Who>> {
        if now >= self.lapse {
            self.limit_burst(self.bursts[1]);
        }
        let mut left = self.bucket.as_mut().map_or(u64::MAX, |bucket| bucket.available(now));
        let mut allowed = left;
        if let Some(cap) = &mut self.cap {
            cap.advance(now);
            allowed = allowed.min(cap.credit);
        }
        // Background first, as far as its credit reaches; the rest belongs to measurements.
        let (class, limit) = if !self.background.is_empty() && allowed >= CELL as u64 {
            (Class::Background, allowed)
        } else if !self.measurement.is_empty() && left >= CELL as u64 {
            (Class::Measurement, left)
        } else {
            return None;
        };
        let (who, wanted) = self.queue(class).take().expect("not empty");
        let bytes = wanted.next_multiple_of(CELL as u64).min(limit / CELL as u64 * CELL as u64);
        left -= bytes;
        if let Some(bucket) = &mut self.bucket {
            bucket.take(bytes);
        }
        debug_assert!(left < u64::MAX || self.bucket.is_none());
        if let Some(cap) = &mut self.cap {
            match class {
                Class::Background => cap.credit -= bytes,
                Class::Measurement => cap.measured += bytes,
            }
        }
        Some(Grant { who, class, bytes })
    }

    /// Time of the next [`poll`](Self::poll) if nothing is requested before.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.background.is_empty() && self.measurement.is_empty() {
            return None;
        }
        let refill = self.bucket.as_ref().map(TokenBucket::next_refill);
        let round = self.cap.as_ref().map(|cap| cap.round + ROUND);
        [refill, round].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: Percent = Percent::new(25).unwrap();

    /// Runs two greedy classes for `seconds`; returns bytes per second of (measurement, background).
    fn run(
        pace: &mut Pace<u32>,
        seconds: u64,
        background_rate: Option<u64>,
        per_grant: u64,
    ) -> Vec<(u64, u64)> {
        let mut result = Vec::new();
        let mut now = Time::ZERO;
        for who in 0..8 {
            pace.request(Class::Measurement, who, per_grant);
        }
        let mut offered = 0;
        for second in 0..seconds {
            let (mut x, mut y) = (0, 0);
            for ms in 0..1000 {
                now = Time((second * 1000 + ms) * 1_000_000);
                match background_rate {
                    None if pace.background.is_empty() => {
                        pace.request(Class::Background, 99, 8 * CELL as u64)
                    }
                    Some(rate) => {
                        offered += rate / 1000;
                        if pace.background.is_empty() && offered >= CELL as u64 {
                            let bytes = offered / CELL as u64 * CELL as u64;
                            offered -= bytes;
                            pace.request(Class::Background, 99, bytes);
                        }
                    }
                    None => {}
                }
                // A processor that forwards 125 MB/s.
                let mut budget = 125_000u64;
                while budget > 0 {
                    let Some(grant) = pace.poll(now) else { break };
                    budget = budget.saturating_sub(grant.bytes);
                    match grant.class {
                        Class::Measurement => {
                            x += grant.bytes;
                            pace.request(Class::Measurement, grant.who, per_grant);
                        }
                        Class::Background => {
                            y += grant.bytes;
                            if background_rate.is_none() {
                                pace.request(Class::Background, 99, 8 * CELL as u64);
                            }
                        }
                    }
                }
            }
            result.push((x, y));
        }
        assert!(now > Time::ZERO);
        result
    }

    #[test]
    fn greedy_background_gets_its_quarter_and_the_limit_holds() {
        let mut pace = Pace::new(Rate(80_000_000));
        pace.measuring(Time::ZERO, QUARTER);
        let seconds = run(&mut pace, 5, None, 32 * CELL as u64);
        for (x, y) in &seconds[1..] {
            assert!((9_900_000..=10_110_000).contains(&(x + y)), "{seconds:?}");
            let share = *y as f64 / (x + y) as f64;
            assert!((0.235..=0.262).contains(&share), "{seconds:?}");
        }
        // The first second has tor's burst.
        assert!(seconds[0].0 + seconds[0].1 > 19_000_000);
    }

    #[test]
    fn background_below_its_share_is_not_held_back() {
        let mut pace = Pace::new(Rate(80_000_000));
        pace.measuring(Time::ZERO, QUARTER);
        let seconds = run(&mut pace, 4, Some(1_000_000), 32 * CELL as u64);
        for (x, y) in &seconds[1..] {
            assert!((950_000..=1_050_000).contains(y), "{seconds:?}");
            assert!((9_900_000..=10_110_000).contains(&(x + y)), "{seconds:?}");
        }
    }

    #[test]
    fn without_measurement_traffic_the_floor_lets_background_pass() {
        let mut pace: Pace<u32> = Pace::new(Rate::UNLIMITED);
        pace.measuring(Time::ZERO, QUARTER);
        let mut y = 0;
        for ms in 0..2000 {
            if pace.background.is_empty() {
                pace.request(Class::Background, 1, 1 << 20);
            }
            while let Some(grant) = pace.poll(Time(ms * 1_000_000)) {
                y += grant.bytes;
                pace.request(Class::Background, 1, 1 << 20);
            }
        }
        // 10 Mbit/s * 0.25 / 0.75 for two seconds.
        assert!((780_000..=840_000).contains(&y), "{y}");
    }

    /// Unused burst lapses: a relay limited to 10 MB/s shows its limit though its processor forwards 11 MB/s.
    #[test]
    fn an_unused_burst_lapses_after_a_second() {
        let mut pace: Pace<u32> = Pace::new(Rate(80_000_000));
        pace.measuring(Time::ZERO, QUARTER);
        let mut seconds = [0; 10];
        for ms in 0..10_000u64 {
            let mut budget = 11_000;
            while budget > 0 {
                pace.request(Class::Measurement, 1, budget);
                let Some(grant) = pace.poll(Time(ms * 1_000_000)) else { break };
                budget = budget.saturating_sub(grant.bytes);
                seconds[ms as usize / 1000] += grant.bytes;
            }
            pace.withdraw(Class::Measurement, 1);
        }
        let mut median = seconds;
        median.sort_unstable();
        assert!((9_900_000..=10_100_000).contains(&median[5]), "{seconds:?}");
        pace.idle();
        pace.request(Class::Background, 1, 40_000_000);
        let later = pace.poll(Time(12_000_000_000)).map(|grant| grant.bytes);
        assert!(later > Some(9_900_000), "the burst is there again: {later:?}");
    }

    #[test]
    fn connections_take_turns_and_the_dead_do_not_hold_them_up() {
        let mut pace: Pace<u32> = Pace::new(Rate(8 * 514 * 100));
        for who in [1, 2, 3] {
            pace.request(Class::Measurement, who, 514);
        }
        pace.withdraw(Class::Measurement, 2);
        let order: Vec<u32> = std::iter::from_fn(|| pace.poll(Time::ZERO)).map(|grant| grant.who).collect();
        assert_eq!(order, [1, 3]);
        assert_eq!(pace.next_timeout(), None);
        pace.request(Class::Measurement, 1, u64::from(u32::MAX));
        let grant = pace.poll(Time::ZERO).unwrap();
        assert_eq!(grant.bytes, 98 * 514, "what the burst left");
        pace.request(Class::Measurement, 1, 514);
        assert_eq!(pace.poll(Time::ZERO), None);
        assert_eq!(pace.next_timeout(), Some(Time::ZERO + ROUND));
        pace.idle();
        assert_eq!(pace.next_timeout(), None);
    }

    #[test]
    fn after_the_measurement_background_is_free_at_once() {
        let mut pace: Pace<u32> = Pace::new(Rate::UNLIMITED);
        pace.measuring(Time::ZERO, Percent::new(0).unwrap());
        pace.request(Class::Background, 1, 514);
        assert_eq!(pace.poll(Time(500_000_000)), None, "r = 0 leaves no background");
        pace.idle();
        assert_eq!(pace.poll(Time(500_000_001)).map(|grant| grant.bytes), Some(514));
    }
}
