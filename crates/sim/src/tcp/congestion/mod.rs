//! How the congestion window moves.

mod cubic;
mod none;
mod reno;
mod window;

use tidegate_control::units::{Span, Time};

use super::config::Congestion;
pub(super) use window::{Sample, UNBOUNDED, Window};

/// The algorithm and its state.
#[derive(Clone, Debug)]
pub(in crate::tcp) enum Control {
    Reno,
    Cubic(cubic::Cubic),
    None,
}

impl Control {
    pub fn new(congestion: Congestion) -> Control {
        match congestion {
            Congestion::Reno => Control::Reno,
            Congestion::Cubic => Control::Cubic(cubic::Cubic::default()),
            Congestion::None => Control::None,
        }
    }

    /// Data was acknowledged.
    pub fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
        match self {
            Control::Reno => reno::on_ack(window, sample),
            Control::Cubic(cubic) => cubic.on_ack(window, sample),
            Control::None => none::on_ack(window),
        }
    }

    /// Segments were lost: the window that recovery ends with.
    pub fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        match self {
            Control::Reno => reno::threshold_after_loss(window),
            Control::Cubic(cubic) => cubic.threshold_after_loss(window),
            Control::None => window.cwnd,
        }
    }

    /// The retransmission timer fired.
    pub fn on_timeout(&mut self, now: Time) {
        if let Control::Cubic(cubic) = self {
            cubic.on_timeout(now);
        }
    }

    /// Sending begins again after a pause.
    pub fn on_restart(&mut self, pause: Span) {
        if let Control::Cubic(cubic) = self {
            cubic.on_restart(pause);
        }
    }

    /// Whether loss leaves the window as it is.
    pub fn ignores_loss(&self) -> bool {
        matches!(self, Control::None)
    }
}
