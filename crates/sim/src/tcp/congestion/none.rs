//! No congestion control: only the receive window, the buffers and the applications limit the sender.

use super::window::{Algorithm, CEILING, Sample, Window};

/// The first acknowledgement opens the window for good.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Unlimited;

impl Algorithm for Unlimited {
    const IGNORES_LOSS: bool = true;

    fn on_ack(&mut self, window: &mut Window, _sample: &Sample) {
        window.cwnd = CEILING;
    }

    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        window.cwnd
    }
}
