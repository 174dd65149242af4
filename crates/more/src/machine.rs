//! What MORE's machines ask of their drivers, and where their randomness comes from.

use std::collections::VecDeque;

use tidegate_control::paths::Peer;
use tidegate_control::random::Random;

/// What a source or a receiver wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Seal this datagram ([`Node::seal`](crate::node::Node::seal)) and send it to that peer.
    Send(Peer, Vec<u8>),
    /// Something came on a stream.
    Came(Came),
    /// A receiver's paths were used or are old, and it has drawn others: publish them.
    Publish,
    /// A receiver's stream is complete in both directions, or fell silent: it is forgotten.
    Over(u64),
}

/// What a packet did to a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The stream.
    pub stream: u64,
    /// Whether it is new to a receiver, or this its first answer.
    pub opened: bool,
    /// Bytes that are now in order.
    pub bytes: Vec<u8>,
    /// Whether nothing will follow.
    pub complete: bool,
    /// Whether the receiver refuses the stream.
    pub refused: bool,
}

/// Outputs that were not polled yet.
pub(crate) type Outputs = VecDeque<Output>;

/// Where a machine's randomness comes from.
pub struct Randomness {
    /// Choices of paths.
    pub choices: Random,
    /// Keys and names: 32 unpredictable bytes per call.
    pub secrets: Box<dyn FnMut() -> [u8; 32] + Send>,
}

impl Randomness {
    /// For simulations and tests, where everything can be foretold.
    pub fn foretold(choices: Random, mut secrets: Random) -> Randomness {
        let secrets = move || secrets.bytes();
        Randomness { choices, secrets: Box::new(secrets) }
    }
}
