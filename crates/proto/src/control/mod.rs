//! Control of circuits' rates: windows at the ends, controllers at relays.
//!
//! A scenario or configuration chooses a [`Control`] by name. It makes a [`Window`] for each end of a circuit, a
//! [`Controller`] for each relay, or both. A controller measures and steers circuits through its [`Plant`].

pub(crate) mod fixed_rate;
pub mod predictor;
mod stream_flow;
pub mod vegas;
pub(crate) mod windows;

use std::fmt::Debug;
use std::ops::AddAssign;

use tidegate_control::units::{Span, Time};

use crate::ids::{CircId, CircuitKey, Side};
pub use fixed_rate::FixedRate;
pub use stream_flow::{DrainRates, StreamFlow};
pub use windows::{FixedWindows, Windows};

/// One way of controlling circuits.
pub trait Control: Debug + Send + Sync {
    /// The window of one end of a circuit; `None` leaves the circuit and its streams to the
    /// [fixed windows](windows::Windows).
    fn window(&self) -> Option<Box<dyn Window>> {
        None
    }
    /// The controller of a relay, if this control has one.
    fn controller(&self, _relay: &Place) -> Option<Box<dyn Controller>> {
        None
    }
    /// How simulated relays' clocks differ.
    fn spread(&self) -> Spread {
        Spread::default()
    }
    /// The length of a step in relays' messages, if they exchange messages.
    fn message_step(&self) -> Option<Span> {
        None
    }
}

/// The relay of a controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Bytes per second that the relay's link or bucket carries; infinite if no limit is known.
    pub bandwidth: f64,
    /// The relay's clock.
    pub clock: Clock,
}

/// How a node's clock differs from others'.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// A controller's first step is this share of a step late.
    pub phase: f64,
    /// Each step takes longer by this share.
    pub slow: f64,
}

/// How relays' clocks differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Whether each relay's steps have a random phase; otherwise all relays step at the same instants.
    pub random_phases: bool,
    /// Clocks are fast or slow by up to this share.
    pub drift: f64,
}

/// The peer broke the rules of flow control; its circuit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// Bounds the cells in flight from one end of a circuit.
pub trait Window: Debug + Send {
    /// Cells that may be packaged now.
    fn room(&self) -> u32;
    /// A cell was packaged.
    fn sent(&mut self, now: Time);
    /// A circuit SENDME arrived; `blocked`: the local circuit queue is full.
    ///
    /// # Errors
    /// If it acknowledges cells that were not sent.
    fn acknowledged(&mut self, now: Time, blocked: bool) -> Result<(), Violation>;
    /// Delivered cells that a circuit SENDME acknowledges.
    fn sendme_increment(&self) -> u32;
    /// The circuit's round-trip time, if the window measures it.
    fn round_trip(&self) -> Option<Span> {
        None
    }
}

/// Steers a relay's circuits in the direction to the client.
///
/// The driver reports circuits and neighbours' messages, and calls [`step`](Self::step) at [`next_step`](Self::next_step).
pub trait Controller: Debug + Send {
    /// Cells that a new circuit may send, and that its streams may package, before the first step.
    fn first_allowance(&self) -> (f64, f64) {
        (f64::INFINITY, f64::INFINITY)
    }
    /// When the next step is due, and when this was decided.
    fn next_step(&self) -> Option<Timer>;
    /// Takes the step that is due.
    fn step(&mut self, now: Time, plant: &mut dyn Plant);
    /// Reports how long the last step took on a live relay. Returns whether it solved a problem.
    fn took(&mut self, _now: Time, _spent: Span) -> bool {
        false
    }
    /// A circuit begins; its key may be reused.
    fn begun(&mut self, _circuit: CircuitKey) {}
    /// A circuit has a new neighbour without any knowledge of it, after an extension or a move to another connection.
    fn joined(&mut self, _circuit: CircuitKey) {}
    /// Two circuits exchanged their paths towards the client, with the neighbours there.
    fn exchanged(&mut self, _a: CircuitKey, _b: CircuitKey) {}
    /// A neighbour's message arrived; `find` maps its circuit ids to circuits and the neighbour's side.
    fn receive(&mut self, _now: Time, _message: &[u8], _find: &dyn Fn(CircId) -> Option<(CircuitKey, Side)>) {
    }
    /// Counts for reports, if the controller keeps them.
    fn totals(&self) -> Option<Totals> {
        None
    }
}

/// A timer; of two timers due at the same time the one set first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When it is due.
    pub due: Time,
    /// When it was set.
    pub set: Time,
}

/// A controller's view of a circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Cells that wait to be sent to the client, in the circuit queue and in the output buffer.
    pub waiting: f64,
    /// The circuit's cells enter the overlay here: it has streams.
    pub enters: bool,
    /// The circuit's cells come from another relay.
    pub passes: bool,
    /// The next node is the client, which accepts everything.
    pub to_client: bool,
}

/// The cells that a circuit may send and package until the next allowance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Cells to send at once.
    pub send: f64,
    /// Cells to add at each [release](Plant::release).
    pub share: f64,
    /// Cells to package from the circuit's streams. A fraction of a cell carries over to the next step if a stream had
    /// more data.
    pub package: f64,
    /// Planned rate of its streams in cells per second, if there is a plan.
    pub planned: Option<f64>,
    /// Whether the fraction of a cell that the last step left over counts too. Otherwise it is lost, unless a cell was
    /// waiting for it.
    pub carry: bool,
}

/// A relay's circuits, as its controller measures and steers them.
pub trait Plant {
    /// All circuits, in order.
    fn circuits(&self, into: &mut Vec<CircuitKey>);
    /// The view of an existing circuit.
    fn view(&self, circuit: CircuitKey) -> View;
    /// Estimate of the cells that its streams' sources still have.
    fn demand(&mut self, circuit: CircuitKey) -> f64;
    /// Bytes that these sources still have, if the driver announces them.
    fn announced(&self, circuit: CircuitKey) -> f64;
    /// Sets the circuit's allowance.
    fn allow(&mut self, now: Time, circuit: CircuitKey, allowance: &Allowance);
    /// Lets every circuit send another share.
    fn release(&mut self, now: Time);
    /// Resumes stopped streams within the allowance; does nothing if the circuit is gone.
    fn resume(&mut self, circuit: CircuitKey);
    /// Whether a relay on that side can receive a message now.
    fn has_neighbour(&self, circuit: CircuitKey, side: Side) -> bool;
    /// Appends at most `most` bytes from `write` to the message for that neighbour. Returns the bytes of a
    /// full message that this sent.
    fn advertise(
        &mut self,
        now: Time,
        to: (CircuitKey, Side),
        most: usize,
        route: Route,
        write: &mut dyn FnMut(CircId, &mut Vec<u8>),
    ) -> u64;
    /// Sends all open messages; returns their bytes.
    fn send(&mut self, now: Time, route: Route) -> u64;
}

/// How neighbours' messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// As cells on the connection between the two.
    InBand,
    /// Outside the network, in exactly this time (simulation only).
    OutOfBand(Span),
}

/// Counts of a controller that exchanges messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Problems solved.
    pub solves: u64,
    /// Circuits in them, summed.
    pub circuits: u64,
    /// Solves that ended in safe rates.
    pub fallbacks: u64,
    /// Steps without a solve, which left circuits to the windows.
    pub left_to_windows: u64,
    /// Trajectories refused: not numbers, too long, replayed, of the wrong kind or of no circuit of ours.
    pub refused: u64,
    /// Bytes of messages sent, cell headers included.
    pub sent_bytes: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        let Totals { solves, circuits, fallbacks, left_to_windows, refused, sent_bytes } = other;
        self.solves += solves;
        self.circuits += circuits;
        self.fallbacks += fallbacks;
        self.left_to_windows += left_to_windows;
        self.refused += refused;
        self.sent_bytes += sent_bytes;
    }
}
