//! Reno (RFC 5681): one segment more each round trip, half after a loss.

use super::window::{Algorithm, Sample, Window};

/// Reno's only state is the window.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Reno;

impl Algorithm for Reno {
    fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
        if !(sample.limited && sample.may_grow) {
            return;
        }
        let mut acked = sample.acked;
        if window.in_slow_start() {
            acked = window.slow_start(acked);
        }
        if acked > 0 {
            window.grow(window.cwnd, acked);
        }
    }

    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        (window.cwnd / 2).max(2)
    }
}
