//! How many XOFF and XON messages an exit can honestly send (proposal 324, "Sidechannel mitigation").
//!
//! An exit that sends others could mark the streams of a client. The client allows twice as many as tor's rules, because the exit
//! may have other parameters. Tor counts such messages as invalid, and goes on.

use crate::control::StreamFlow;

use super::drain::Signal;

/// Tor's `TOTAL_XMIT_SCALE_AT`: above this number of bytes, all counts are halved. So a long stream earns no credit.
const MOST_BYTES: u64 = 10 << 20;

/// Counts of one stream.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    sent_bytes: u64,
    xoffs: u64,
    xons: u64,
}

impl Signals {
    /// The stream sent data.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
        while self.sent_bytes > MOST_BYTES {
            self.sent_bytes /= 2;
            self.xoffs /= 2;
            self.xons /= 2;
        }
    }

    /// Counts a message. False if the data that the stream has sent cannot cause it.
    pub(crate) fn allow(&mut self, signal: Signal, flow: &StreamFlow) -> bool {
        let (count, bytes) = match signal {
            Signal::Xoff => (&mut self.xoffs, flow.exit_bytes),
            Signal::Xon(_) => {
                let measured = flow.rates.map_or(flow.exit_bytes, |rates| rates.bytes);
                (&mut self.xons, flow.exit_bytes.min(measured))
            }
        };
        *count += 1;
        2 * self.sent_bytes >= bytes * *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XOFF: u64 = 244_000;

    #[test]
    fn an_exit_sends_a_message_for_a_limit_of_data_at_most() {
        let flow = StreamFlow::default();
        for signal in [Signal::Xoff, Signal::Xon(7)] {
            let mut signals = Signals::default();
            signals.sent(XOFF / 2 - 1);
            assert!(!signals.allow(signal, &flow), "too early");
            let mut signals = Signals::default();
            signals.sent(XOFF);
            assert!(signals.allow(signal, &flow) && signals.allow(signal, &flow));
            assert!(!signals.allow(signal, &flow), "more than twice as often as tor's");
        }
    }

    #[test]
    fn a_long_stream_earns_no_credit() {
        let flow = StreamFlow::default();
        let mut signals = Signals::default();
        (0..1000).for_each(|_| signals.sent(MOST_BYTES));
        let allowed = (0..1000).take_while(|_| signals.allow(Signal::Xon(1), &flow)).count();
        assert!((40..=85).contains(&allowed), "{allowed}");
    }
}
