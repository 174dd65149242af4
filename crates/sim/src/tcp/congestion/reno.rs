//! Reno (RFC 5681): one segment more each round trip, half after a loss.

use super::window::{Sample, Window};

pub(super) fn on_ack(window: &mut Window, sample: &Sample) {
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

pub(super) fn threshold_after_loss(window: &Window) -> u32 {
    (window.cwnd / 2).max(2)
}
