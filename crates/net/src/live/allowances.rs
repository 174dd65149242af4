//! How much each neighbour may make the relay fetch from a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::{BucketPlan, TokenBucket};

/// Bytes per second that the requests of one neighbour may make the relay fetch, and at once. Beyond that, the directory answers
/// the stream itself, no faster than the stream's windows allow. The public network's consensus takes 3 MB.
const FETCHED: u64 = 256 << 10;
const FETCHED_AT_ONCE: u64 = 16 << 20;

/// The allowances that are not full. A neighbour without one may have everything fetched.
#[derive(Debug, Default)]
pub(crate) struct Allowances {
    of: BTreeMap<Option<IpAddr>, (TokenBucket, Time)>,
    /// When each of them is full again. It is forgotten then.
    full: BTreeSet<(Time, Option<IpAddr>)>,
}

impl Allowances {
    /// Whether a neighbour may have more fetched.
    pub(crate) fn may_fetch(&mut self, now: Time, of: Option<IpAddr>) -> bool {
        self.forget_full(now);
        self.of.get_mut(&of).is_none_or(|(bucket, _)| bucket.available(now) > 0)
    }

    /// Notes that a neighbour had this many bytes fetched.
    pub(crate) fn fetched(&mut self, now: Time, of: Option<IpAddr>, bytes: usize) {
        self.forget_full(now);
        let (bucket, full) = self.of.entry(of).or_insert_with(|| {
            let plan = BucketPlan {
                rate_bytes_per_s: FETCHED,
                burst_bytes: FETCHED_AT_ONCE,
                refill_every: Span::from_millis(100),
                drop_fractions: false,
            };
            (TokenBucket::new(plan), Time::ZERO)
        });
        bucket.available(now);
        bucket.overdraw(bytes as u64);
        self.full.remove(&(*full, of));
        *full = bucket.due(FETCHED_AT_ONCE);
        self.full.insert((*full, of));
    }

    /// Forgets the allowances that are full again.
    fn forget_full(&mut self, now: Time) {
        while let Some(first) = self.full.first().copied().filter(|(due, _)| *due <= now) {
            self.full.remove(&first);
            self.of.remove(&first.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::from(number.to_be_bytes()))
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn a_neighbour_has_only_so_much_fetched() {
        let mut all = Allowances::default();
        for _ in 0..3 {
            assert!(all.may_fetch(at(1000), address(1)));
            all.fetched(at(1000), address(1), 6 << 20);
        }
        assert!(!all.may_fetch(at(2000), address(1)) && all.may_fetch(at(2000), address(2)));
        assert!(all.may_fetch(at(10_000), address(1)), "2 MiB were owed");
    }

    #[test]
    fn a_full_allowance_is_forgotten() {
        let mut all = Allowances::default();
        all.fetched(at(1000), address(1), 1 << 20);
        all.fetched(at(2000), address(1), 1 << 20);
        assert!(all.may_fetch(at(8900), address(2)));
        assert_eq!(all.of.len(), 1, "1 MiB takes 4 s");
        assert!(all.may_fetch(at(9100), address(2)));
        assert!(all.of.is_empty() && all.full.is_empty());
    }

    /// A scan of all allowances for each newcomer would take minutes.
    #[test]
    fn newcomers_cost_the_same_beside_100_000_others() {
        let begun = clock::now();
        let mut all = Allowances::default();
        for number in 0..100_000 {
            assert!(all.may_fetch(at(1000), address(number)));
            all.fetched(at(1000), address(number), 1 << 20);
        }
        assert_eq!((all.of.len(), all.full.len()), (100_000, 100_000));
        assert!(all.may_fetch(at(6000), address(0)));
        assert!(all.of.is_empty());
        let took = clock::now().since(begun);
        eprintln!("{took} for 100,000 newcomers");
        assert!(took < Span::from_secs(10), "{took}");
    }
}
