//! No congestion control: only the receive window, the buffers and the applications limit the sender.

use tidegate_control::units::Time;

use super::window::{Algorithm, CEILING, Progress, Sample, Window};

/// The first acknowledgement opens the window for good.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Unlimited;

impl Algorithm for Unlimited {
    const OWN_WINDOW: bool = true;

    fn on_ack(&mut self, window: &mut Window, _sample: &Sample) {
        window.cwnd = CEILING;
    }

    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        window.cwnd
    }

    fn on_timeout(&mut self, _: &mut Window, _: Time, _: u32, _: Option<&Progress>) {}
}
