//! Congestion control: how the congestion window and the pacing rate move. A new algorithm is a file and a line in `algorithms!`.

mod bbr;
mod bbr3;
mod cubic;
mod none;
mod reno;
mod window;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::Time;

use super::delivery_rate::Loss;
use window::Algorithm;
pub(super) use window::{Progress, Repair, Restart, Sample, UNBOUNDED, Window};

/// Makes the list of names and the type of states. The type is an enum, so that each acknowledgement costs a match
/// instead of a virtual call.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident = $state:ty;)+) => {
        /// A congestion control algorithm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum Congestion {
            $($(#[$doc])* $name,)+
        }

        /// An algorithm and its state.
        #[derive(Clone, Debug)]
        pub(in crate::tcp) enum Control {
            $($name($state),)+
        }

        impl Control {
            /// The state at the beginning of a connection.
            pub(super) fn new(congestion: Congestion) -> Control {
                match congestion {
                    $(Congestion::$name => Control::$name(<$state>::default()),)+
                }
            }

            /// Data was acknowledged.
            pub(super) fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
                match self {
                    $(Control::$name(state) => state.on_ack(window, sample),)+
                }
            }

            /// Segments were lost; returns the window at the end of recovery.
            pub(super) fn threshold_after_loss(&mut self, window: &Window) -> u32 {
                match self {
                    $(Control::$name(state) => state.threshold_after_loss(window),)+
                }
            }

            /// The retransmission timer fired, with so many segments left in the network.
            pub(super) fn on_timeout(
                &mut self,
                window: &mut Window,
                now: Time,
                in_network: u32,
                progress: Option<&Progress>,
            ) {
                match self {
                    $(Control::$name(state) => state.on_timeout(window, now, in_network, progress),)+
                }
            }

            /// Segments were lost, `total` having been delivered; see [`Algorithm::on_loss`].
            pub(super) fn on_loss(&mut self, window: &Window, now: Time, total: u64, loss: &Loss) {
                match self {
                    $(Control::$name(state) => state.on_loss(window, now, total, loss),)+
                }
            }

            /// A loss was none: `prior` was the window before it.
            pub(super) fn on_undo(&mut self, window: &mut Window, prior: u32) {
                match self {
                    $(Control::$name(state) => state.on_undo(window, prior),)+
                }
            }

            /// Sending begins again after a pause.
            pub(super) fn on_restart(&mut self, window: &mut Window, restart: &Restart) {
                match self {
                    $(Control::$name(state) => state.on_restart(window, restart),)+
                }
            }

            /// Whether the algorithm alone moves the window.
            pub(super) fn has_own_window(&self) -> bool {
                match self {
                    $(Control::$name(_) => <$state>::OWN_WINDOW,)+
                }
            }

            /// Whether the algorithm needs rate samples and sets a pacing rate.
            pub(super) fn goes_by_rate(&self) -> bool {
                match self {
                    $(Control::$name(_) => <$state>::BY_RATE,)+
                }
            }

            /// Payload bytes per second at which bursts leave; zero: as fast as the window allows.
            pub(super) fn pacing_rate(&self) -> f64 {
                match self {
                    $(Control::$name(state) => state.pacing_rate(),)+
                }
            }
        }
    };
}

algorithms! {
    /// Additive increase, halving (RFC 5681).
    Reno = reno::Reno;
    /// RFC 9438 with HyStart, as in Linux.
    Cubic = cubic::Cubic;
    /// Bottleneck bandwidth and round-trip propagation time, first version, with pacing, as in Linux.
    Bbr = bbr::Bbr;
    /// The third version of BBR, which reduces its rate and window if segments are lost.
    Bbr3 = bbr3::Bbr3;
    /// No congestion control: the window opens to its maximum with the first acknowledgement and never shrinks.
    None = none::Unlimited;
}
