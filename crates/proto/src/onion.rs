//! Onion layers: how a message reaches one hop of a circuit and no other.
//!
//! The machines of this crate are generic over [`Onion`], so that the simulator moves [`Clear`] bodies,
//! which count their layers instead of encrypting them, and sockets move encrypted ones.

use std::fmt::Debug;

use tidegate_control::random::Random;
use tidegate_control::units::Time;

use crate::cell::{Digest, Message, Payload, RelayId, StreamId};
pub use crate::cell::{Malformed, Onion};
use crate::switching::CongestionNotice;

/// Onion routing without the cryptography: for simulation only.
///
/// A body says how many layers it has left (from the client) or has got so far (towards it), which is all
/// that encryption does to the flow of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// What a client's circuits ask for: congestion control, or to do without; `None`: all are configured alike.
    pub congestion_control: Option<bool>,
}

/// A [`Clear`] body.
#[derive(Clone, Debug, PartialEq)]
pub struct ClearBody {
    /// From the client: layers still on. Towards the client: relays passed, the speaker included.
    pub layers: u8,
    /// What it says; boxed unless it is the frequent kind.
    pub message: ClearMessage,
}

/// The message of a [`ClearBody`], small for the frequent kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum ClearMessage {
    /// A key exchange, and whether its circuit has congestion control; or nothing.
    Handshake(Option<bool>),
    /// Application bytes.
    Data {
        /// On this stream.
        stream: StreamId,
        /// So many.
        bytes: u16,
        /// Which.
        stamp: Stamp,
    },
    /// Bytes for the neighbour.
    Plain(Vec<u8>),
    /// Why a circuit should move, for the neighbour.
    Notice(CongestionNotice),
    /// Everything else.
    Other(Box<Message<Clear>>),
}

/// What stands for application bytes in simulation: when they went where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When they were put into a cell.
    pub packaged: Time,
    /// When that cell left its first circuit queue; zero until then.
    pub departed: Time,
    /// Number of the trace that follows this cell; zero if none does.
    pub trace: u32,
}

impl ClearBody {
    fn new(layers: u8, message: Message<Clear>) -> ClearBody {
        let message = match message {
            Message { stream, payload: Payload::Data(bytes, stamp) } => {
                ClearMessage::Data { stream, bytes, stamp }
            }
            other => ClearMessage::Other(Box::new(other)),
        };
        ClearBody { layers, message }
    }

    fn message(self) -> Result<Message<Clear>, Malformed> {
        match self.message {
            ClearMessage::Handshake(_) | ClearMessage::Plain(_) | ClearMessage::Notice(_) => Err(Malformed),
            ClearMessage::Data { stream, bytes, stamp } => {
                Ok(Message { stream, payload: Payload::Data(bytes, stamp) })
            }
            ClearMessage::Other(message) => Ok(*message),
        }
    }
}

impl Onion for Clear {
    type Body = ClearBody;
    type Data = Stamp;
    type Address = u64;
    type Peer = RelayId;
    /// Whether the circuit has congestion control, where it says so.
    type RelayHop = Option<bool>;
    type ClientHop = Option<bool>;
    type Handshake = Option<bool>;

    fn empty() -> ClearBody {
        ClearBody { layers: 0, message: ClearMessage::Handshake(None) }
    }
    fn from_plain(bytes: Vec<u8>) -> ClearBody {
        ClearBody { layers: 0, message: ClearMessage::Plain(bytes) }
    }
    fn plain(body: &ClearBody) -> &[u8] {
        if let ClearMessage::Plain(bytes) = &body.message { bytes } else { &[] }
    }
    fn recycle(body: ClearBody) -> Vec<u8> {
        if let ClearMessage::Plain(bytes) = body.message { bytes } else { Vec::new() }
    }
    fn with_notice(notice: CongestionNotice) -> ClearBody {
        ClearBody { layers: 0, message: ClearMessage::Notice(notice) }
    }
    fn notice(body: &ClearBody) -> Option<CongestionNotice> {
        if let ClearMessage::Notice(notice) = &body.message { Some(*notice) } else { None }
    }
    fn peer(&self, relay: RelayId) -> RelayId {
        relay
    }
    fn relay(&mut self, peer: &RelayId) -> Option<RelayId> {
        Some(*peer)
    }
    fn secret(&mut self, draws: &mut Random) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&draws.bits().to_le_bytes()));
        bytes
    }
    fn start(&mut self, _: RelayId) -> (Option<bool>, ClearBody) {
        let asked = self.congestion_control;
        (asked, ClearBody { layers: 0, message: ClearMessage::Handshake(asked) })
    }
    fn accept(&mut self, create: &ClearBody, _: bool) -> Option<(Option<bool>, ClearBody)> {
        let ClearMessage::Handshake(asked) = create.message else { return None };
        Some((asked, Clear::empty()))
    }
    fn finish(&mut self, asked: Option<bool>, created: &ClearBody) -> Option<Option<bool>> {
        matches!(created.message, ClearMessage::Handshake(_)).then_some(asked)
    }
    fn peel(_: &mut Option<bool>, body: &mut ClearBody) -> Result<Option<Message<Clear>>, Malformed> {
        body.layers = body.layers.checked_sub(1).ok_or(Malformed)?;
        if body.layers > 0 {
            return Ok(None);
        }
        std::mem::replace(body, Clear::empty()).message().map(Some)
    }
    fn wrap(_: &mut Option<bool>, body: &mut ClearBody) {
        body.layers = body.layers.saturating_add(1);
    }
    fn originate(_: &mut Option<bool>, message: Message<Clear>) -> ClearBody {
        ClearBody::new(1, message)
    }
    fn asks_congestion_control(asked: &Option<bool>) -> Option<bool> {
        *asked
    }
    fn digests(_: &Option<bool>) -> Option<[Digest; 2]> {
        None
    }
    fn has_congestion_control(asked: &Option<bool>) -> Option<bool> {
        *asked
    }
    fn client_digests(_: &Option<bool>) -> Option<[Digest; 2]> {
        None
    }
    fn seal(_: &mut [Option<bool>], to: usize, message: Message<Clear>) -> ClearBody {
        ClearBody::new(to as u8 + 1, message)
    }
    fn open(hops: &mut [Option<bool>], body: ClearBody) -> Result<(usize, Message<Clear>), Malformed> {
        let hop = usize::from(body.layers).checked_sub(1).filter(|hop| *hop < hops.len()).ok_or(Malformed)?;
        body.message().map(|message| (hop, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_recognised_at_its_hop_only() {
        let message = Message { stream: StreamId(7), payload: Payload::Data(498, Stamp::default()) };
        let mut body = Clear::seal(&mut [None; 3], 2, message.clone());
        assert_eq!(Clear::peel(&mut None, &mut body), Ok(None));
        assert_eq!(Clear::peel(&mut None, &mut body), Ok(None));
        assert_eq!(Clear::peel(&mut None, &mut body), Ok(Some(message.clone())));

        let mut back = Clear::originate(&mut None, message.clone());
        Clear::wrap(&mut None, &mut back);
        Clear::wrap(&mut None, &mut back);
        assert_eq!(Clear::open(&mut [None; 3], back.clone()), Ok((2, message)));
        assert_eq!(Clear::open(&mut [None; 2], back), Err(Malformed));
        assert_eq!(Clear::peel(&mut None, &mut Clear::empty()), Err(Malformed));
    }

    #[test]
    fn bodies_stay_small() {
        assert!(size_of::<ClearBody>() <= 40, "{}", size_of::<ClearBody>());
    }
}
