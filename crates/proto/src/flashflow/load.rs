//! Pacing of a measurer: one rate for all circuits that share it, and a window per circuit.

use tidegate_control::units::{Span, Time};

use super::cell::CELL;
use crate::bucket::{BucketPlan, TokenBucket};

/// Cells written or read at once, as many as fit into rustls's buffer of 64 KiB.
pub const BATCH: usize = 127;
/// Window of a circuit, as time at its rate.
///
/// Enough for paths around the world, and small enough to avoid long queues at a slow relay.
const WINDOW: Span = Span::from_millis(500);
/// Smallest window in cells.
const LEAST_WINDOW: u64 = 64;
/// Refill interval of the rate.
const REFILL: Span = Span::from_millis(5);

/// The pace of circuits that share a rate.
#[derive(Clone, Debug)]
pub struct Load {
    bucket: TokenBucket,
    window: u64,
}

/// Permission of a circuit to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Send this number of cells, at most [`BATCH`].
    Send(u64),
    /// Ask again at this time.
    At(Time),
    /// Ask again when cells came back.
    Full,
}

impl Load {
    /// For `rate` bits per second over `sockets` circuits.
    pub fn new(rate: u64, sockets: usize) -> Load {
        let bytes = rate / 8;
        let bucket = TokenBucket::new(BucketPlan {
            rate_bytes_per_s: bytes,
            burst_bytes: (bytes / 20).max(4 * CELL as u64),
            refill_every: REFILL,
            drop_fractions: false,
        });
        let in_window = u128::from(bytes) * u128::from(WINDOW.0) / 1_000_000_000;
        let window = (in_window / (sockets.max(1) * CELL) as u128).min(u128::from(u64::MAX)) as u64;
        Load { bucket, window: window.max(LEAST_WINDOW) }
    }

    /// Decides about a circuit with `in_flight` unanswered cells and `room` for more in its socket.
    pub fn turn(&mut self, now: Time, in_flight: u64, room: u64) -> Turn {
        let room = self.window.saturating_sub(in_flight).min(room).min(BATCH as u64);
        if room == 0 {
            return Turn::Full;
        }
        let cells = (self.bucket.available(now) / CELL as u64).min(room);
        if cells == 0 {
            return Turn::At(self.bucket.next_refill());
        }
        self.bucket.take(cells * CELL as u64);
        Turn::Send(cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_and_the_window_stops_a_circuit() {
        let mut load = Load::new(8 * CELL as u64 * 20_000, 10);
        let (mut sent, mut now) = (0, Time::ZERO);
        while now < Time::ZERO + Span::from_secs(10) {
            match load.turn(now, 0, u64::MAX) {
                Turn::Send(cells) => sent += cells,
                Turn::At(later) => now = later,
                Turn::Full => panic!("nothing is in flight"),
            }
        }
        // Ten seconds and a burst of a twentieth of a second.
        assert!((200_000..=201_000).contains(&sent), "{sent}");
        assert_eq!(load.turn(now, 1000, u64::MAX), Turn::Full, "half a second of a tenth of the rate");
        assert_eq!(load.turn(now, 0, 0), Turn::Full, "no room in the socket");
        let mut slow = Load::new(1, 1000);
        assert_eq!(slow.turn(now, 63, u64::MAX), Turn::Send(1), "the least window");
    }
}
