//! Outputs and randomness of the machines.

use std::collections::VecDeque;

use tidegate_control::paths::Peer;
use tidegate_control::random::Random;

/// Output of a source or a receiver: a request to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Seal this datagram ([`Node::seal`](crate::node::Node::seal)) and send it to this peer.
    Send(Peer, Vec<u8>),
    /// News of a stream.
    Stream(StreamEvent),
    /// Publish a new descriptor: the receiver replaced used and old paths.
    Publish,
    /// A receiver dropped this stream, which is complete in both directions or fell silent.
    Closed(u64),
}

/// News of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEvent {
    /// The stream.
    pub stream: u64,
    /// Whether the stream is new to the receiver, or this is the first answer to the client.
    pub opened: bool,
    /// Bytes that are now in order.
    pub bytes: Vec<u8>,
    /// Whether the other side ended the stream.
    pub complete: bool,
    /// Whether the receiver refuses the stream.
    pub refused: bool,
}

/// Outputs that the driver has not fetched.
pub(crate) type Outputs = VecDeque<Output>;

/// Randomness of a machine.
pub struct Randomness {
    /// For the choice of paths.
    pub choices: Random,
    /// For keys and identifiers: 32 unpredictable bytes per call.
    pub secrets: Box<dyn FnMut() -> [u8; 32] + Send>,
}

impl Randomness {
    /// Reproducible randomness for simulations and tests.
    pub fn foretold(choices: Random, mut secrets: Random) -> Randomness {
        let secrets = move || secrets.bytes();
        Randomness { choices, secrets: Box::new(secrets) }
    }
}
