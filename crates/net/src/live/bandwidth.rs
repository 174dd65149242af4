//! A relay's bandwidth limit.

use std::cell::{Cell, RefCell};

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::{BucketPlan, TokenBucket};
use tidegate_proto::links::ChannelId;

use crate::clock;
use crate::overlay::RateLimit;

/// A token bucket over all cells that a relay writes to relays and clients. It also counts bytes.
#[derive(Default)]
pub struct Limit {
    bucket: RefCell<Option<TokenBucket>>,
    rate: Cell<Option<u64>>,
    written: Cell<u64>,
    read: Cell<u64>,
}

/// Refill interval and burst of the bucket.
const REFILL: Span = Span::from_millis(10);
const BURST: Span = Span::from_millis(100);

impl Limit {
    /// Limits the rate to `bytes_per_s`; infinity means unlimited.
    pub fn new(bytes_per_s: f64) -> Limit {
        let limit = Limit::default();
        limit.set(bytes_per_s);
        limit
    }

    /// Changes the limit.
    pub fn set(&self, bytes_per_s: f64) {
        let plan = bytes_per_s.is_finite().then(|| BucketPlan {
            rate_bytes_per_s: bytes_per_s as u64,
            burst_bytes: (bytes_per_s * BURST.as_secs_f64()) as u64,
            refill_every: REFILL,
            drop_fractions: false,
        });
        self.rate.set(plan.map(|plan| plan.rate_bytes_per_s));
        *self.bucket.borrow_mut() = plan.map(TokenBucket::new);
    }

    /// The limit, bytes per second; `None` if unlimited.
    pub fn rate(&self) -> Option<u64> {
        self.rate.get()
    }

    /// Bytes of cells written and read so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.written.get(), self.read.get())
    }

    /// When `bytes` may leave; `None` means now.
    fn take(&self, bytes: u64) -> Option<Time> {
        let mut bucket = self.bucket.borrow_mut();
        let bucket = bucket.as_mut()?;
        if bucket.available(clock::now()) == 0 {
            return Some(bucket.next_refill());
        }
        // A batch is not split: the bucket goes into debt.
        bucket.overdraw(bytes);
        None
    }
}

impl RateLimit for Limit {
    async fn leave(&self, _: ChannelId, bytes: u64) {
        while let Some(later) = self.take(bytes) {
            clock::until(later).await;
        }
        self.written.set(self.written.get() + bytes);
    }

    fn received(&self, bytes: u64) {
        self.read.set(self.read.get() + bytes);
    }
}
