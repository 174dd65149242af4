//! A relay's bandwidth limit.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_control::shares::network;
use tidegate_control::turns::Sharing;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::bucket::{BucketPlan, TokenBucket};

use super::turn::TurnQueue;
use crate::clock;
use crate::flashflow::measured::Measured;
use crate::link::waits;
use crate::overlay::{Connection, RateLimit};

/// A token bucket over all cells that a relay writes to relays and clients. It also counts bytes.
///
/// If the relay can be measured, the measurement's pace is the bucket instead: it divides the rate between users and
/// measurers (FlashFlow, section 4.1).
///
/// The connections of a network take turns with those of others, and share the turn of the network. Relays carry cells of many
/// users, so connections with a known relay have turns of their own, up to `RELAY_TURNS`.
///
/// The shards of a relay share one bucket and its counters (`share`).
#[derive(Default)]
pub struct Limit {
    shared: SharedLimit,
    measured: Option<Measured>,
}

/// A limit that other threads take part in.
#[derive(Clone, Default)]
pub(crate) struct SharedLimit(Arc<Shared>);

#[derive(Default)]
struct Shared {
    bucket: Mutex<Bucket>,
    /// Lets one connection at a time wait for tokens.
    turns: TurnQueue,
    /// Addresses of known relays.
    relays: Mutex<BTreeSet<IpAddr>>,
    written: AtomicU64,
    read: AtomicU64,
    /// Bytes of exit streams to and from servers.
    sent: AtomicU64,
    received: AtomicU64,
}

#[derive(Default)]
struct Bucket {
    tokens: Option<TokenBucket>,
    plan: Option<BucketPlan>,
    exhaustion: Exhaustion,
}

/// How often the bucket was empty when a connection wanted to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exhaustion {
    /// Number of minutes in which it was, as tor counts them.
    pub minutes: u64,
    /// The last time, at most a minute before the real one.
    pub last: Option<Time>,
}

impl Exhaustion {
    fn note(&mut self, now: Time) {
        if self.last.is_none_or(|last| now.since(last) >= MINUTE) {
            self.minutes += 1;
            self.last = Some(now);
        }
    }
}

/// Refill interval and burst of the bucket.
const REFILL: Span = Span::from_millis(10);
const BURST: Span = Span::from_millis(100);
/// Turns of the connections with one relay: as many as a relay with the most threads has connections. Above it, as with a
/// connection for each circuit (PCTCP, QUIC), connections share them.
const RELAY_TURNS: usize = 64;
const MINUTE: Span = Span::from_secs(60);

/// A limit in bytes per second as a rate; infinity means unlimited.
pub(crate) fn as_rate(bytes_per_s: f64) -> Rate {
    if bytes_per_s.is_finite() { Rate((bytes_per_s * 8.0) as u64) } else { Rate::UNLIMITED }
}

impl From<SharedLimit> for Limit {
    fn from(shared: SharedLimit) -> Limit {
        Limit { shared, measured: None }
    }
}

impl Limit {
    /// Limits the rate to `bytes_per_s`; infinity means unlimited.
    pub fn new(bytes_per_s: f64) -> Limit {
        let limit = Limit::default();
        limit.set(bytes_per_s);
        limit
    }

    /// The limit for another shard of the relay. A shard cannot be measured.
    pub(crate) fn share(&self) -> SharedLimit {
        self.shared.clone()
    }

    /// Lets `measured`, which has the same rate, pace the cells.
    #[must_use]
    pub(crate) fn with_measurement(self, measured: Option<Measured>) -> Limit {
        Limit { measured, ..self }
    }

    /// The measured side of the relay, if it can be measured.
    pub(crate) fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// Changes the limit.
    pub(crate) fn set(&self, bytes_per_s: f64) {
        if let Some(measured) = &self.measured {
            measured.set_rate(as_rate(bytes_per_s));
        }
        let plan = bytes_per_s.is_finite().then(|| BucketPlan {
            rate_bytes_per_s: bytes_per_s as u64,
            burst_bytes: (bytes_per_s * BURST.as_secs_f64()) as u64,
            refill_every: REFILL,
            drop_fractions: false,
        });
        let mut bucket = self.bucket();
        // The reported count belongs to the reported limit.
        let exhaustion = if bucket.plan == plan { bucket.exhaustion } else { Exhaustion::default() };
        *bucket = Bucket { tokens: plan.map(TokenBucket::new), plan, exhaustion };
    }

    /// The limit, and how often it stopped connections; `None` if unlimited.
    pub(crate) fn exhaustion(&self) -> Option<(BucketPlan, Exhaustion)> {
        let bucket = self.bucket();
        Some((bucket.plan?, bucket.exhaustion))
    }

    /// The limit, bytes per second; `None` if unlimited.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.bucket().plan?.rate_bytes_per_s)
    }

    /// Bytes of cells written and read so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let shared = &self.shared.0;
        (shared.written.load(Ordering::Relaxed), shared.read.load(Ordering::Relaxed))
    }

    /// Bytes that the relay wrote and read so far, to relays and clients and to servers, as tor counts them.
    pub(crate) fn carried(&self) -> (u64, u64) {
        let (written, read) = self.totals();
        let shared = &self.shared.0;
        (written + shared.sent.load(Ordering::Relaxed), read + shared.received.load(Ordering::Relaxed))
    }

    /// Gives connections with relays at these addresses turns of their own from now on, up to `RELAY_TURNS` an address.
    pub fn know_relays(&self, relays: BTreeSet<IpAddr>) {
        *self.relays() = relays;
    }

    fn relays(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.shared.0.relays.lock().expect("no shard panics while it compares addresses")
    }

    /// The group that shares the turns of a connection from this address.
    fn group(&self, address: Option<IpAddr>) -> Option<Sharing<IpAddr>> {
        let address = address?.to_canonical();
        // A relay may open any number of connections, so it also has a bounded number of turns.
        let turns = if self.relays().contains(&address) { RELAY_TURNS } else { 1 };
        Some(Sharing { group: network(address).0, turns })
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.shared.0.bucket.lock().expect("no shard panics while it takes tokens")
    }

    /// When `bytes` may leave; `None` means now.
    fn take(&self, bytes: u64) -> Option<Time> {
        let mut bucket = self.bucket();
        let Bucket { tokens, exhaustion, .. } = &mut *bucket;
        let tokens = tokens.as_mut()?;
        // The time is read under the lock, so it never runs backwards for the bucket.
        let now = clock::now();
        if tokens.available(now) == 0 {
            exhaustion.note(now);
            return Some(tokens.next_refill());
        }
        // A batch is not split: the bucket goes into debt.
        tokens.overdraw(bytes);
        None
    }
}

impl RateLimit for Limit {
    async fn leave(&self, connection: Connection, bytes: u64) {
        if let Some(measured) = &self.measured {
            let leaves = measured.leave(connection.channel, self.group(connection.address), bytes);
            // A measurement stops users by agreement, so it is not the limit that does.
            if waits(leaves).await.1 && !measured.is_busy() {
                self.bucket().exhaustion.note(clock::now());
            }
        } else if self.rate().is_some() {
            // Only the first connection waits for the refill. If all did, the one that wakes first would also ask first
            // for the next refill, and could keep the others waiting for as long as it has cells.
            let _turn = self.shared.0.turns.turn(self.group(connection.address)).await;
            while let Some(later) = self.take(bytes) {
                clock::until(later).await;
            }
        }
        self.shared.0.written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn outside(&self, sent: u64, received: u64) {
        if let Some(measured) = &self.measured {
            measured.outside(sent, received);
        }
        self.shared.0.sent.fetch_add(sent, Ordering::Relaxed);
        self.shared.0.received.fetch_add(received, Ordering::Relaxed);
    }

    fn received(&self, bytes: u64) {
        if let Some(measured) = &self.measured {
            measured.received(bytes);
        }
        self.shared.0.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_counts_minutes() {
        let mut exhaustion = Exhaustion::default();
        for second in [0, 1, 59, 60, 61, 200] {
            exhaustion.note(Time::ZERO + Span::from_secs(second));
        }
        let last = Some(Time::ZERO + Span::from_secs(200));
        assert_eq!(exhaustion, Exhaustion { minutes: 3, last });
    }

    #[test]
    fn streams_of_exits_count_as_carried() {
        let limit = Limit::new(f64::INFINITY);
        limit.received(5);
        limit.outside(3, 4);
        assert_eq!((limit.totals(), limit.carried()), ((0, 5), (3, 9)));
    }
}
