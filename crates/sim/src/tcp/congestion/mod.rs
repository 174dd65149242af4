//! Congestion control: how the congestion window moves. A new algorithm is a file and a line in `algorithms!`.

mod cubic;
mod none;
mod reno;
mod window;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};

use window::Algorithm;
pub(super) use window::{Sample, UNBOUNDED, Window};

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
            pub fn new(congestion: Congestion) -> Control {
                match congestion {
                    $(Congestion::$name => Control::$name(<$state>::default()),)+
                }
            }

            /// Data was acknowledged.
            pub fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
                match self {
                    $(Control::$name(state) => state.on_ack(window, sample),)+
                }
            }

            /// Segments were lost; returns the window at the end of recovery.
            pub fn threshold_after_loss(&mut self, window: &Window) -> u32 {
                match self {
                    $(Control::$name(state) => state.threshold_after_loss(window),)+
                }
            }

            /// The retransmission timer fired.
            pub fn on_timeout(&mut self, now: Time) {
                match self {
                    $(Control::$name(state) => state.on_timeout(now),)+
                }
            }

            /// Sending begins again after a pause.
            pub fn on_restart(&mut self, pause: Span) {
                match self {
                    $(Control::$name(state) => state.on_restart(pause),)+
                }
            }

            /// Whether loss leaves the window as it is.
            pub fn ignores_loss(&self) -> bool {
                match self {
                    $(Control::$name(_) => <$state>::IGNORES_LOSS,)+
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
    /// No congestion control: the window opens to its maximum with the first acknowledgement and never shrinks.
    None = none::Unlimited;
}
