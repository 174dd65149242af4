//! Outputs of the server that its driver has not fetched.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::message::Message;
use crate::{Output, Peer};

/// Queue of outputs; counts the messages for the server's budget.
#[derive(Default)]
pub(super) struct Outbox {
    outputs: VecDeque<Output>,
    messages: u32,
}

impl Outbox {
    pub(super) fn message(&mut self, to: Peer, message: Message) {
        self.messages += 1;
        self.outputs.push_back(Output::Message { to, message });
    }

    pub(super) fn datagram(&mut self, to: Peer, bytes: Bytes) {
        self.outputs.push_back(Output::Datagram { to, bytes });
    }

    /// Ends the connection to a peer after the queued outputs.
    pub(super) fn part(&mut self, peer: Peer) {
        self.outputs.push_back(Output::Part(peer));
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The number of messages since the last call.
    pub(super) fn take_message_count(&mut self) -> u32 {
        std::mem::take(&mut self.messages)
    }
}
