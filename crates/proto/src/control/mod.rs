//! How circuits' rates are controlled: what ends of circuits may have in flight, and what relays let go.
//!
//! A [`Control`] is what a scenario or a configuration names, with its parameters. Each end of a circuit has a
//! [`Window`] of it, and each relay a [`Controller`], if it makes any. What a controller measures and steers is
//! its [`Plant`].

pub mod fixed_rate;
pub mod predictor;
pub mod vegas;
pub mod windows;

use std::fmt::Debug;
use std::ops::AddAssign;

use tidegate_control::units::{Span, Time};

use crate::ids::{CircId, CircuitKey, Side};

/// One way of controlling circuits.
pub trait Control: Debug + Send + Sync {
    /// What one end of a circuit may have in flight; with `None` the [fixed windows](windows::Windows) bound it, and
    /// its streams.
    fn window(&self) -> Option<Box<dyn Window>> {
        None
    }
    /// What steers the circuits of a relay.
    fn controller(&self, _relay: &Place) -> Option<Box<dyn Controller>> {
        None
    }
    /// How relays' clocks differ where they are simulated.
    fn spread(&self) -> Spread {
        Spread::default()
    }
    /// The step that relays' messages count in, if they exchange any.
    fn message_step(&self) -> Option<Span> {
        None
    }
}

/// Where a controller is.
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
    /// Each step takes so much longer, as a share of it.
    pub slow: f64,
}

/// How relays' clocks differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Whether each relay's steps have a phase of their own, else all are at the same instants.
    pub random_phases: bool,
    /// Clocks are fast or slow by up to this share.
    pub drift: f64,
}

/// The peer broke the rules of flow control; its circuit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// A stream's receiver holds more than its side takes: it says XOFF above this many bytes
/// (`cc_xoff_client` and `cc_xoff_exit`, 500 cells of 498 bytes each), and XON once it holds none.
pub const XOFF_BYTES: u64 = 500 * 498;

/// What one end of a circuit may have in flight.
pub trait Window: Debug + Send {
    /// Cells that may be packaged now.
    fn room(&self) -> u32;
    /// A cell was packaged.
    fn sent(&mut self, now: Time);
    /// A circuit SENDME arrived; `blocked`: our own circuit queue has stopped us.
    ///
    /// # Errors
    /// If nothing was sent for it.
    fn acknowledged(&mut self, now: Time, blocked: bool) -> Result<(), Violation>;
    /// Delivered cells that a circuit SENDME acknowledges.
    fn sendme_increment(&self) -> u32;
    /// The circuit's round-trip time, if this measures it.
    fn round_trip(&self) -> Option<Span> {
        None
    }
}

/// What steers a relay's circuits in the direction to the client: it is told of circuits and neighbours' messages, and
/// takes a step when it asked for one.
pub trait Controller: Debug + Send {
    /// Cells that a new circuit may send, and that its streams may package, before the first step.
    fn first_allowance(&self) -> (f64, f64) {
        (f64::INFINITY, f64::INFINITY)
    }
    /// When the next step is due, and since when it is known to be.
    fn next_step(&self) -> Option<Timer>;
    /// Takes the step that is due.
    fn step(&mut self, now: Time, plant: &mut dyn Plant);
    /// Its last step kept the relay busy for so long: whether it solved a problem. A simulation has nothing to say.
    fn took(&mut self, _now: Time, _spent: Span) -> bool {
        false
    }
    /// A circuit begins; its key may have been another's.
    fn begun(&mut self, _circuit: CircuitKey) {}
    /// A circuit has a new neighbour, who knows nothing of it: it was extended, or has moved to another connection.
    fn joined(&mut self, _circuit: CircuitKey) {}
    /// Two circuits have exchanged their ways towards the client, with the neighbours there.
    fn exchanged(&mut self, _a: CircuitKey, _b: CircuitKey) {}
    /// A neighbour's message; `find` knows the circuits of its channel, and on which side of them it is.
    fn receive(&mut self, _now: Time, _message: &[u8], _find: &dyn Fn(CircId) -> Option<(CircuitKey, Side)>) {
    }
    /// What was done so far, if somebody may want to know.
    fn totals(&self) -> Option<Totals> {
        None
    }
}

/// A timeout: the earlier goes first, and of two that are due at once the one set first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When it is due.
    pub due: Time,
    /// When it was set.
    pub set: Time,
}

/// What a relay's controller sees of a circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Cells that wait to be sent to the client, in the circuit queue and in the output buffer.
    pub waiting: f64,
    /// The circuit's cells enter the overlay here: it has streams.
    pub enters: bool,
    /// They come from another relay.
    pub passes: bool,
    /// The next node is the client, which takes whatever comes.
    pub to_client: bool,
}

/// How much of a circuit may go until the controller says otherwise, in cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// To be sent at once,
    pub send: f64,
    /// and more at each [release](Plant::release).
    pub share: f64,
    /// To be packaged from the circuit's streams; what is left of a cell there counts in the next step if a stream had
    /// more.
    pub package: f64,
    /// Cells per second that its streams are planned to have, if they are.
    pub planned: Option<f64>,
    /// The part of a cell that was left over before counts too; else it is lost, unless a cell waited, of which it then
    /// let that part go.
    pub carry: bool,
}

/// A relay's circuits as its controller measures and steers them.
pub trait Plant {
    /// All circuits, in order.
    fn circuits(&self, into: &mut Vec<CircuitKey>);
    /// What there is to see of one that is there.
    fn view(&self, circuit: CircuitKey) -> View;
    /// Cells that the sources of its streams still have, as far as can be told.
    fn demand(&mut self, circuit: CircuitKey) -> f64;
    /// Bytes that they still have, where the driver knows and says so.
    fn announced(&self, circuit: CircuitKey) -> f64;
    /// Sets what it may send and package.
    fn allow(&mut self, now: Time, circuit: CircuitKey, allowance: &Allowance);
    /// Lets every circuit send another share.
    fn release(&mut self, now: Time);
    /// Lets streams that were stopped go on as far as they may; nothing if the circuit is gone.
    fn resume(&mut self, circuit: CircuitKey);
    /// Whether there is a relay on that side that can be told something now.
    fn has_neighbour(&self, circuit: CircuitKey, side: Side) -> bool;
    /// Adds what `write` writes, `most` bytes at most, to the message for that neighbour. Returns the bytes of a
    /// message that this filled and sent.
    fn advertise(
        &mut self,
        now: Time,
        to: (CircuitKey, Side),
        most: usize,
        route: Route,
        write: &mut dyn FnMut(CircId, &mut Vec<u8>),
    ) -> u64;
    /// Sends the messages begun; their bytes.
    fn send(&mut self, now: Time, route: Route) -> u64;
}

/// How neighbours' messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// As cells on the connection between the two.
    InBand,
    /// Past the network, in exactly this time: only a simulation can.
    OutOfBand(Span),
}

/// Counts of what a controller that exchanges messages has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Problems solved.
    pub solves: u64,
    /// Circuits in them, summed.
    pub circuits: u64,
    /// Solves that ended in safe rates.
    pub fallbacks: u64,
    /// Steps without a solve: circuits were left to the windows.
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
