//! Parameters of flow control of streams on circuits with congestion control (proposal 324, section 4).

use tidegate_control::units::Span;

/// When an end of a stream sends XOFF and XON, and which rate it states in XON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFlow {
    /// Unconsumed bytes above which an exit sends XOFF (`cc_xoff_exit`, there in cells).
    pub exit_bytes: u64,
    /// Unconsumed bytes above which a client sends XOFF (`cc_xoff_client`, there in cells).
    pub client_bytes: u64,
    /// Time above this number of bytes before XOFF is sent. Tor waits 5 ms, so that a burst can reach the socket.
    pub grace: Span,
    /// How the rates in XON are measured; `None`: XON states no rate, as in simulations.
    pub rates: Option<DrainRates>,
}

/// How an end measures the rate at which the local side of a stream consumes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainRates {
    /// Bytes that a measurement takes (`cc_xon_rate`, there in cells).
    pub bytes: u64,
    /// Change of the rate after which the peer gets the new one, in percent (`cc_xon_change_pct`).
    pub change_percent: u64,
    /// Measurements in the moving average (`cc_xon_ewma_cnt`).
    pub average_of: u64,
}

impl StreamFlow {
    /// XOFF above 500 cells of 498 bytes, and XON without a rate, both at once: the model of simulations, which is that of tor
    /// 0.4.7 without rates.
    pub const WITHOUT_RATES: StreamFlow =
        StreamFlow { exit_bytes: 500 * 498, client_bytes: 500 * 498, grace: Span::ZERO, rates: None };

    /// Reads the parameters. `stated` looks one up by name. Values outside of tor's ranges count as the nearest limit, and
    /// missing ones as tor's defaults.
    pub fn of_consensus(stated: impl Fn(&str) -> Option<i32>) -> StreamFlow {
        let within = |name: &str, default: i32, low: i32, high: i32| {
            u64::from(stated(name).unwrap_or(default).clamp(low, high).unsigned_abs())
        };
        StreamFlow {
            exit_bytes: within("cc_xoff_exit", 500, 1, 10_000) * CELL,
            client_bytes: within("cc_xoff_client", 500, 1, 10_000) * CELL,
            grace: Span::from_millis(5),
            rates: Some(DrainRates {
                bytes: within("cc_xon_rate", 500, 1, 5000) * CELL,
                change_percent: within("cc_xon_change_pct", 25, 1, 99),
                average_of: within("cc_xon_ewma_cnt", 2, 2, 100),
            }),
        }
    }
}

impl Default for StreamFlow {
    fn default() -> StreamFlow {
        StreamFlow::of_consensus(|_| None)
    }
}

/// Bytes of a cell in these parameters: as many as fit with Counter Galois Onion. By default tor 0.4.9.11 logs a limit of 244,000.
const CELL: u64 = 488;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_defaults_and_ranges_of_tor() {
        let usual = StreamFlow::default();
        assert_eq!((usual.exit_bytes, usual.client_bytes), (244_000, 244_000));
        assert_eq!(usual.rates, Some(DrainRates { bytes: 244_000, change_percent: 25, average_of: 2 }));
        let low = StreamFlow::of_consensus(|_| Some(i32::MIN));
        assert_eq!((low.exit_bytes, low.client_bytes), (488, 488));
        assert_eq!(low.rates, Some(DrainRates { bytes: 488, change_percent: 1, average_of: 2 }));
        let high = StreamFlow::of_consensus(|_| Some(i32::MAX));
        assert_eq!((high.exit_bytes, high.client_bytes), (4_880_000, 4_880_000));
        assert_eq!(high.rates, Some(DrainRates { bytes: 2_440_000, change_percent: 99, average_of: 100 }));
        let named = StreamFlow::of_consensus(|name| (name == "cc_xoff_client").then_some(7));
        assert_eq!((named.exit_bytes, named.client_bytes), (244_000, 7 * 488));
    }
}
