//! Limits of a relay that its shards divide: memory, connections, circuits and exit streams.
//!
//! Each shard holds a share of every limit, and the shares never exceed the limit together. Several times per second a
//! shard exchanges its share for what it uses and an equal part of the unused rest. A busy shard thus gets the parts
//! that others leave, except for a part that each shard keeps: otherwise one stranger could take the whole limit on its
//! shard, and leave nothing to users of other shards.

use std::sync::{Arc, Mutex};

/// A limit that is divided.
#[derive(Clone, Copy)]
pub(crate) enum Divided {
    /// Bytes of cells and streams.
    Memory,
    /// Connections.
    Connections,
    /// Circuits.
    Circuits,
    /// Exit streams.
    Streams,
}

/// A shard keeps an equal part of a limit, divided by this, even if it does not use it.
const KEPT: u64 = 4;

/// One shard's share of a limit, and what it uses.
#[derive(Clone, Copy, Default)]
struct Share {
    granted: u64,
    used: u64,
}

/// The shares of one limit.
struct Shares {
    limit: u64,
    of: Vec<Share>,
}

/// The shares of all limits.
#[derive(Clone)]
pub(crate) struct Division(Arc<[Mutex<Shares>; 4]>);

impl Division {
    /// Divides limits among this number of shards.
    pub(crate) fn new(count: usize) -> Division {
        let shares = || Mutex::new(Shares { limit: 0, of: vec![Share::default(); count] });
        Division(Arc::new([shares(), shares(), shares(), shares()]))
    }

    /// The new share of a shard that uses this much now.
    pub(crate) fn share(&self, what: Divided, shard: usize, limit: u64, used: u64) -> u64 {
        self.0[what as usize].lock().expect("no shard panics while it divides").share(shard, limit, used)
    }
}

impl Shares {
    fn share(&mut self, shard: usize, limit: u64, used: u64) -> u64 {
        if limit < self.limit {
            // The others learn of the lower limit later.
            let scale =
                |granted: u64| (u128::from(granted) * u128::from(limit) / u128::from(self.limit)) as u64;
            self.of.iter_mut().for_each(|share| share.granted = scale(share.granted));
        }
        self.limit = limit;
        self.of[shard].used = used;
        let kept = limit / (KEPT * self.of.len() as u64);
        let others: u64 = (self.of.iter().enumerate())
            .filter(|(other, _)| *other != shard)
            .map(|(_, share)| share.granted.max(kept))
            .sum();
        let free = limit.saturating_sub(others);
        let unused = limit.saturating_sub(self.of.iter().map(|share| share.used).sum());
        let wanted = used + unused / self.of.len() as u64;
        self.of[shard].granted = wanted.max(kept).min(free);
        self.of[shard].granted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_busy_shard_gets_what_idle_ones_leave() {
        let division = Division::new(2);
        let share = |shard, used| division.share(Divided::Memory, shard, 1000, used);
        assert_eq!([share(0, 0), share(1, 0)], [500, 500]);
        let mut busy = 500;
        for _ in 0..12 {
            share(1, 0);
            busy = share(0, busy);
        }
        // The idle shard keeps a quarter of its half.
        assert_eq!([busy, share(1, 0)], [875, 125]);
        // The busy shard has finished.
        for _ in 0..12 {
            share(0, 0);
            share(1, 0);
        }
        assert_eq!([share(0, 0), share(1, 0)], [500, 500]);
    }

    proptest! {
        #[test]
        fn shares_together_never_exceed_the_limit(
            count in 1usize..6,
            steps in prop::collection::vec((0usize..6, 0u64..400, 1u64..1000), 1..200),
        ) {
            let mut shares = Shares { limit: 0, of: vec![Share::default(); count] };
            for (shard, used, limit) in steps {
                shares.share(shard % count, limit, used);
                prop_assert!(shares.of.iter().map(|share| share.granted).sum::<u64>() <= limit);
            }
        }
    }
}
