//! Onion layers, which let exactly one hop of a circuit read a message.
//!
//! The state machines of this crate are generic over [`Onion`]. The simulator moves [`Clear`] bodies, which count
//! their layers instead of encrypting them; live nodes move encrypted ones.

use std::fmt::Debug;

use tidegate_control::random::Random;
use tidegate_control::units::Time;

use crate::cell::{Digest, Message, Payload, RelayId, StreamId};
pub use crate::cell::{Malformed, Onion, Terms};
use crate::switching::CongestionNotice;

/// Onion routing without cryptography, for simulation only.
///
/// A body counts its layers: those left on the way from the client, or those added on the way to it. Encryption does
/// not affect the flow of cells otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// Whether a client's circuits ask for congestion control; `None`: all nodes are configured alike.
    pub congestion_control: Option<bool>,
}

/// A [`Clear`] body. It is small, half a cache line, because most of a simulation's memory is cells.
#[derive(Clone, Debug, PartialEq)]
pub enum ClearBody {
    /// A key exchange, and whether its circuit has congestion control. Also the empty body.
    Handshake(Option<bool>),
    /// Application bytes.
    Data {
        /// From the client: layers left. Towards the client: relays passed, including the sender.
        layers: u8,
        /// Number of bytes.
        bytes: u16,
        /// The stream.
        stream: StreamId,
        /// Stands for the bytes.
        stamp: Stamp,
    },
    /// Bytes without layers, for the neighbour.
    Plain(Vec<u8>),
    /// A notice that a circuit should move, for the neighbour.
    Notice(CongestionNotice),
    /// Every other message.
    Other {
        /// As for data.
        layers: u8,
        /// The message.
        message: Box<Message<Clear>>,
    },
}

/// Stands for application bytes in a simulation: their timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When the bytes were put into a cell.
    pub packaged: Time,
    /// When that cell left its first circuit queue; zero until then.
    pub departed: Time,
    /// Number of the trace that follows this cell; zero without one.
    pub trace: u32,
}

impl ClearBody {
    fn new(layers: u8, message: Message<Clear>) -> ClearBody {
        match message {
            Message { stream, payload: Payload::Data(bytes, stamp) } => {
                ClearBody::Data { layers, bytes, stream, stamp }
            }
            other => ClearBody::Other { layers, message: Box::new(other) },
        }
    }

    fn layers(&mut self) -> Result<&mut u8, Malformed> {
        match self {
            ClearBody::Data { layers, .. } | ClearBody::Other { layers, .. } => Ok(layers),
            ClearBody::Handshake(_) | ClearBody::Plain(_) | ClearBody::Notice(_) => Err(Malformed),
        }
    }

    fn message(self) -> Result<Message<Clear>, Malformed> {
        match self {
            ClearBody::Handshake(_) | ClearBody::Plain(_) | ClearBody::Notice(_) => Err(Malformed),
            ClearBody::Data { bytes, stream, stamp, .. } => {
                Ok(Message { stream, payload: Payload::Data(bytes, stamp) })
            }
            ClearBody::Other { message, .. } => Ok(*message),
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

    const REPEATS: bool = true;

    fn empty() -> ClearBody {
        ClearBody::Handshake(None)
    }
    fn from_plain(bytes: Vec<u8>) -> ClearBody {
        ClearBody::Plain(bytes)
    }
    fn plain(body: &ClearBody) -> &[u8] {
        if let ClearBody::Plain(bytes) = body { bytes } else { &[] }
    }
    fn recycle(body: ClearBody) -> Vec<u8> {
        if let ClearBody::Plain(bytes) = body { bytes } else { Vec::new() }
    }
    fn with_notice(notice: CongestionNotice) -> ClearBody {
        ClearBody::Notice(notice)
    }
    fn notice(body: &ClearBody) -> Option<CongestionNotice> {
        if let ClearBody::Notice(notice) = body { Some(*notice) } else { None }
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
        (asked, ClearBody::Handshake(asked))
    }
    fn accept(&mut self, create: &ClearBody, _: bool) -> Option<(Option<bool>, ClearBody)> {
        let ClearBody::Handshake(asked) = *create else { return None };
        Some((asked, Clear::empty()))
    }
    fn finish(&mut self, asked: Option<bool>, created: &ClearBody) -> Option<Option<bool>> {
        matches!(created, ClearBody::Handshake(_)).then_some(asked)
    }
    fn peel(
        _: &mut Option<bool>,
        _: bool,
        body: &mut ClearBody,
    ) -> Result<Option<Message<Clear>>, Malformed> {
        let layers = body.layers()?;
        *layers = layers.checked_sub(1).ok_or(Malformed)?;
        if *layers > 0 {
            return Ok(None);
        }
        std::mem::replace(body, Clear::empty()).message().map(Some)
    }
    fn wrap(_: &mut Option<bool>, body: &mut ClearBody) {
        if let Ok(layers) = body.layers() {
            *layers = layers.saturating_add(1);
        }
    }
    fn originate(_: &mut Option<bool>, message: Message<Clear>) -> ClearBody {
        ClearBody::new(1, message)
    }
    fn terms(asked: &Option<bool>) -> Terms {
        Terms { congestion_control: *asked, ..Terms::default() }
    }
    fn binding(_: &Option<bool>) -> Option<[u8; 20]> {
        None
    }
    fn digests(_: &Option<bool>) -> Option<[Digest; 2]> {
        None
    }
    fn client_terms(asked: &Option<bool>) -> Terms {
        Clear::terms(asked)
    }
    fn client_digests(_: &Option<bool>) -> Option<[Digest; 2]> {
        None
    }
    fn seal(_: &mut [Option<bool>], to: usize, _: bool, message: Message<Clear>) -> ClearBody {
        ClearBody::new(to as u8 + 1, message)
    }
    fn open(hops: &mut [Option<bool>], mut body: ClearBody) -> Result<(usize, Message<Clear>), Malformed> {
        let layers = usize::from(*body.layers()?);
        let hop = layers.checked_sub(1).filter(|hop| *hop < hops.len()).ok_or(Malformed)?;
        body.message().map(|message| (hop, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_recognised_at_its_hop_only() {
        let message = Message { stream: StreamId(7), payload: Payload::Data(498, Stamp::default()) };
        let mut body = Clear::seal(&mut [None; 3], 2, false, message.clone());
        assert_eq!(Clear::peel(&mut None, false, &mut body), Ok(None));
        assert_eq!(Clear::peel(&mut None, false, &mut body), Ok(None));
        assert_eq!(Clear::peel(&mut None, false, &mut body), Ok(Some(message.clone())));

        let mut back = Clear::originate(&mut None, message.clone());
        Clear::wrap(&mut None, &mut back);
        Clear::wrap(&mut None, &mut back);
        assert_eq!(Clear::open(&mut [None; 3], back.clone()), Ok((2, message)));
        assert_eq!(Clear::open(&mut [None; 2], back), Err(Malformed));
        assert_eq!(Clear::peel(&mut None, false, &mut Clear::empty()), Err(Malformed));
    }

    #[test]
    fn bodies_stay_small() {
        assert!(size_of::<ClearBody>() <= 32, "{}", size_of::<ClearBody>());
    }
}
