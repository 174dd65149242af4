//! How many cells one end of a circuit has in flight: Tor's fixed windows, or its congestion control. And
//! PredicTor, which controls each hop.

pub mod predictor;
pub mod vegas;
pub mod windows;

use tidegate_control::units::Time;

use vegas::Vegas;
use windows::Window;
pub use windows::Windows;

/// How a circuit's rate is controlled end to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Control {
    /// Fixed windows per circuit and per stream.
    Windows(Windows),
    /// A congestion window per circuit (proposal 324, Tor-Vegas); streams are stopped by XOFF instead.
    Vegas(vegas::Parameters),
    /// Rates per circuit and hop that relays agree on with their neighbours; fixed windows bound what is in
    /// flight as ever.
    Predictor(predictor::Parameters),
}

impl Default for Control {
    fn default() -> Control {
        Control::Windows(Windows::default())
    }
}

/// The peer broke the rules of flow control; its circuit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// A stream's receiver holds more than its side takes: it says XOFF above this many bytes
/// (`cc_xoff_client` and `cc_xoff_exit`, 500 cells of 498 bytes each), and XON once it holds none.
pub const XOFF_BYTES: u64 = 500 * 498;

/// What one end of a circuit may have in flight.
#[derive(Clone, Debug)]
pub(crate) enum InFlight {
    Windows(Window),
    Vegas(Box<Vegas>),
}

impl InFlight {
    pub fn new(control: Control) -> InFlight {
        match control {
            Control::Windows(windows) | Control::Predictor(predictor::Parameters { windows, .. }) => {
                InFlight::Windows(Window::new(windows.circuit, windows.circuit_increment))
            }
            Control::Vegas(parameters) => InFlight::Vegas(Box::new(Vegas::new(parameters))),
        }
    }

    /// Cells that may be packaged now.
    pub fn room(&self) -> u32 {
        match self {
            InFlight::Windows(window) => window.room(),
            InFlight::Vegas(vegas) => vegas.room(),
        }
    }

    /// A cell was packaged.
    pub fn sent(&mut self, now: Time) {
        match self {
            InFlight::Windows(window) => window.sent(),
            InFlight::Vegas(vegas) => vegas.sent(now),
        }
    }

    /// A circuit SENDME arrived; `blocked`: our own circuit queue has stopped us.
    pub fn acknowledged(&mut self, now: Time, blocked: bool) -> Result<(), Violation> {
        match self {
            InFlight::Windows(window) => window.acknowledged(),
            InFlight::Vegas(vegas) => vegas.acknowledged(now, blocked),
        }
    }
}

impl Control {
    /// Delivered cells that a circuit SENDME acknowledges.
    pub fn increment(&self) -> u32 {
        match self {
            Control::Windows(windows) | Control::Predictor(predictor::Parameters { windows, .. }) => {
                windows.circuit_increment
            }
            Control::Vegas(parameters) => parameters.sendme_increment,
        }
    }

    /// The fixed windows, if there are any.
    pub fn windows(&self) -> Option<Windows> {
        match self {
            Control::Windows(windows) | Control::Predictor(predictor::Parameters { windows, .. }) => {
                Some(*windows)
            }
            Control::Vegas(_) => None,
        }
    }
}
