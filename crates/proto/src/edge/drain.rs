//! How fast the local side of a stream consumes data, and what the peer is told about it (proposal 324, section 4).
//!
//! The rules are those of tor's `congestion_control_flow.c`, except that a rate is computed from the bytes of its own interval.
//! Tor divides the bytes of the interval before.

use tidegate_control::units::Time;

use crate::cell::DATA_BYTES;
use crate::control::{DrainRates, StreamFlow};

/// A message about flow control. The rate is in units of 1,000 bytes per second; 0 means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Stop sending.
    Xoff,
    /// Send, at most at this rate.
    Xon(u32),
}

/// Unconsumed bytes above which the local side counts as slow: 32 cells, which tor reads at once.
const BURST: u64 = 32 * DATA_BYTES as u64;

/// Highest rate (tor's `INT32_MAX`).
const MOST: u64 = i32::MAX as u64;

/// The state of one stream.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Delivered bytes that the local side has not consumed.
    unread: u64,
    /// We sent XOFF and not yet XON.
    stops_peer: bool,
    /// Since when more bytes wait than XOFF needs.
    above: Option<Time>,
    /// Since when the local side has been behind without a measurement.
    behind: Option<Time>,
    /// Bytes consumed since then. While it is not behind: since the last measurement.
    consumed: u64,
    /// The moving average, in units of 1,000 bytes per second; 0 before the first measurement.
    rate: u64,
    /// The rate in the last XON.
    stated: u64,
}

impl Drain {
    /// `unread` delivered bytes are not consumed now. Returns a message for the peer. An exit and a client have different
    /// limits for XOFF.
    pub(crate) fn changed(
        &mut self,
        now: Time,
        unread: u64,
        limit: u64,
        flow: &StreamFlow,
    ) -> Option<Signal> {
        let before = std::mem::replace(&mut self.unread, unread);
        if unread > before {
            let xoff = self.fills(now, limit, flow);
            return xoff.or_else(|| if unread > BURST { self.drains(now, 0, flow.rates) } else { None });
        }
        if unread < before { self.drains(now, before - unread, flow.rates) } else { None }
    }

    /// Whether data arrived that makes XOFF due.
    fn fills(&mut self, now: Time, limit: u64, flow: &StreamFlow) -> Option<Signal> {
        if self.unread <= limit || self.stops_peer {
            self.above = None;
            return None;
        }
        let above = *self.above.get_or_insert(now);
        if flow.grace.0 > 0 && now.since(above) <= flow.grace {
            return None;
        }
        self.above = None;
        self.stops_peer = true;
        // A rate that led to XOFF was wrong.
        self.rate = 0;
        Some(Signal::Xoff)
    }

    /// The local side consumed this number of bytes.
    fn drains(&mut self, now: Time, bytes: u64, rates: Option<DrainRates>) -> Option<Signal> {
        self.measure(now, bytes, rates);
        let due = if self.stops_peer { self.unread == 0 } else { self.differs(rates) };
        if due {
            self.stops_peer = false;
            self.stated = self.rate;
        }
        let signal = due.then_some(Signal::Xon(self.stated as u32));
        if self.unread == 0 {
            self.behind = None;
            // It kept up for long: it may be able to take more.
            if self.stated > 0 && rates.is_some_and(|rates| self.consumed >= rates.bytes) {
                self.rate = (2 * self.rate).min(MOST);
                self.consumed = 0;
            }
        }
        signal
    }

    /// Measures the rate at which it is consumed while more waits.
    fn measure(&mut self, now: Time, bytes: u64, rates: Option<DrainRates>) {
        let Some(DrainRates { bytes: enough, average_of, .. }) = rates else { return };
        self.consumed += bytes;
        if self.behind.is_none() && self.unread > 0 {
            self.behind = Some(now);
            self.consumed = 0;
        }
        let took = self.behind.map_or(0, |since| now.since(since).0);
        if took == 0 || self.consumed <= enough {
            return;
        }
        // 1,000 bytes per second are a byte per 1,000,000 ns.
        let rate = u128::from(self.consumed) * 1_000_000 / u128::from(took);
        let rate = u64::try_from(rate).unwrap_or(MOST).clamp(1, MOST);
        let averaged = (2 * rate + (average_of - 1) * self.rate) / (average_of + 1);
        self.rate = if self.rate == 0 { rate } else { averaged };
        (self.behind, self.consumed) = (None, 0);
    }

    /// Whether the rate has changed by so much that the peer should know.
    fn differs(&self, rates: Option<DrainRates>) -> bool {
        let Some(DrainRates { change_percent, .. }) = rates else { return false };
        let than = |percent: u64| percent * self.stated / 100;
        let differs = self.rate > than(100 + change_percent) || self.rate < than(100 - change_percent);
        self.stated > 0 && differs
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    const XOFF: u64 = 244_000;
    const CELLS: u64 = 488;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn changed(drain: &mut Drain, ms: u64, unread: u64) -> Option<Signal> {
        drain.changed(at(ms), unread, XOFF, &StreamFlow::default())
    }

    /// Fills the buffer until XOFF, from `ms` on, and consumes it at `rate` thousand bytes per second. Returns the time and the
    /// rate of the XON.
    fn stopped_and_drained(drain: &mut Drain, mut ms: u64, rate: u64) -> (u64, u32) {
        assert_eq!(changed(drain, ms, XOFF + CELLS), None, "the grace period begins");
        ms += 6;
        assert_eq!(changed(drain, ms, XOFF + 10 * CELLS), Some(Signal::Xoff));
        let mut unread = XOFF + 10 * CELLS;
        loop {
            ms += 1;
            unread = unread.saturating_sub(rate);
            match changed(drain, ms, unread) {
                Some(Signal::Xon(stated)) => return (ms, stated),
                signal => assert_eq!((signal, unread > 0), (None, true)),
            }
        }
    }

    #[test]
    fn xon_states_the_rate_at_which_the_buffer_emptied() {
        for rate in [10, 100, 400] {
            let mut drain = Drain::default();
            let (_, stated) = stopped_and_drained(&mut drain, 0, rate);
            assert!(u64::from(stated).abs_diff(rate) <= 1 + rate / 100, "{stated} for {rate}");
        }
    }

    #[test]
    fn a_rate_is_an_average_and_stated_again_once_it_changes_by_a_quarter() {
        let mut drain = Drain::default();
        let (mut ms, stated) = stopped_and_drained(&mut drain, 0, 100);
        assert!(stated.abs_diff(100) <= 1);
        // 20,000 bytes wait all the time, and 112 or 150 bytes are consumed each ms. Averages of two weigh the new value 2/3.
        for (rate, least, most) in [(112, 0, 0), (150, 133, 139)] {
            let mut told = Vec::new();
            for _ in 0..2 * XOFF / rate {
                ms += 1;
                assert_eq!(changed(&mut drain, ms, 20_000 + rate), None);
                told.extend(changed(&mut drain, ms, 20_000));
            }
            let told: Vec<u32> = (told.into_iter())
                .map(|signal| if let Signal::Xon(rate) = signal { rate } else { 0 })
                .collect();
            assert_eq!(told.len(), usize::from(most > 0), "{told:?}");
            assert!(told.iter().all(|told| (least..=most).contains(told)), "{told:?}");
        }
    }

    #[test]
    fn a_rate_doubles_while_the_local_side_keeps_up() {
        let mut drain = Drain::default();
        let (mut ms, stated) = stopped_and_drained(&mut drain, 0, 100);
        let mut told = Vec::new();
        // Each arrival is consumed at once.
        for _ in 0..3 * XOFF / CELLS + 100 {
            ms += 5;
            assert_eq!(changed(&mut drain, ms, CELLS), None);
            told.extend(changed(&mut drain, ms, 0));
        }
        assert_eq!(told, [2, 4, 8].map(|times| Signal::Xon(times * stated)));
    }

    #[test]
    fn a_burst_that_reaches_the_socket_in_time_is_no_reason_for_xoff() {
        let mut drain = Drain::default();
        assert_eq!(changed(&mut drain, 0, XOFF + 1), None);
        assert_eq!(changed(&mut drain, 5, XOFF + 2), None);
        assert_eq!(changed(&mut drain, 6, 0), None);
        assert_eq!(changed(&mut drain, 7, XOFF), None);
        assert_eq!(changed(&mut drain, 20, XOFF + 1), None, "the time begins anew");
        assert_eq!(changed(&mut drain, 26, XOFF + 2), Some(Signal::Xoff));
        assert_eq!(changed(&mut drain, 40, XOFF + 3), None, "once");
    }

    #[test]
    fn without_rates_xoff_and_xon_are_sent_at_once() {
        let flow = StreamFlow::WITHOUT_RATES;
        let mut drain = Drain::default();
        assert_eq!(drain.changed(at(0), XOFF, XOFF, &flow), None);
        assert_eq!(drain.changed(at(0), XOFF + 1, XOFF, &flow), Some(Signal::Xoff));
        assert_eq!(drain.changed(at(1), 1, XOFF, &flow), None);
        assert_eq!(drain.changed(at(2), 0, XOFF, &flow), Some(Signal::Xon(0)));
        for ms in 3..3000 {
            let signals = [drain.changed(at(ms), CELLS, XOFF, &flow), drain.changed(at(ms), 0, XOFF, &flow)];
            assert_eq!(signals, [None, None]);
        }
    }
}
