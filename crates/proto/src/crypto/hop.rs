//! One side's layers of a hop, for both directions, as the key exchange agreed: AES-CTR with SHA-1 ([`layer`]) or
//! Counter Galois Onion ([`cgo`]).

use super::cgo;
use super::layer::{self, BODY};
use super::message::Format;
use super::negotiation::Wishes;
use super::ntor::HopKeys;
use super::ntor_v3::KeyMaterial;
use crate::cell::{Digest, Terms};

/// Commands of cells with a relay message. Counter Galois Onion covers them.
pub(super) const RELAY: u8 = 3;
pub(super) const RELAY_EARLY: u8 = 9;

/// A layer in one direction.
enum Layer {
    Aes(layer::Layer),
    Cgo(cgo::Layer),
}

/// The command of a cell with a relay message.
fn command(early: bool) -> u8 {
    if early { RELAY_EARLY } else { RELAY }
}

impl Layer {
    /// As [`layer::Layer::pass`].
    fn pass(&mut self, early: bool, body: &mut [u8; BODY]) {
        match self {
            Layer::Aes(layer) => layer.pass(body),
            Layer::Cgo(layer) => layer.pass(command(early), body),
        }
    }

    /// As [`layer::Layer::seal`].
    fn seal(&mut self, early: bool, body: &mut [u8; BODY]) {
        match self {
            Layer::Aes(layer) => layer.seal(body),
            Layer::Cgo(layer) => layer.seal(command(early), body),
        }
    }

    /// Removes the layer. Returns whether the cell is for this hop, or from it.
    fn recognises(&mut self, early: bool, body: &mut [u8; BODY]) -> bool {
        match self {
            Layer::Aes(layer) => {
                layer.pass(body);
                layer.recognises(body)
            }
            Layer::Cgo(layer) => layer.recognises(command(early), body),
        }
    }

    fn digest(&self) -> Digest {
        match self {
            Layer::Aes(layer) => Digest::Sha1(layer.digest()),
            Layer::Cgo(layer) => Digest::Tag(layer.tag()),
        }
    }

    fn rest(&mut self) {
        match self {
            Layer::Aes(layer) => layer.rest(),
            Layer::Cgo(layer) => layer.rest(),
        }
    }

    fn format(&self) -> Format {
        match self {
            Layer::Aes(_) => Format::V0,
            Layer::Cgo(_) => Format::V1,
        }
    }
}

/// One side's layers of a hop, for both directions.
pub struct Hop {
    forward: Layer,
    backward: Layer,
    congestion_control: bool,
    binding: [u8; 20],
}

impl Default for Hop {
    /// A hop that no key exchange has made: nothing can be read or sealed with it.
    fn default() -> Hop {
        let (key, digest) = (Default::default(), Default::default());
        Hop::plain(&HopKeys {
            forward: key,
            backward: key,
            forward_digest: digest,
            backward_digest: digest,
            binding: digest,
        })
    }
}

impl Hop {
    /// A hop of a key exchange without negotiation. Both sides have the same layers.
    pub(super) fn plain(keys: &HopKeys) -> Hop {
        Hop {
            forward: Layer::Aes(layer::Layer::new(&keys.forward, &keys.forward_digest)),
            backward: Layer::Aes(layer::Layer::new(&keys.backward, &keys.backward_digest)),
            congestion_control: false,
            binding: keys.binding,
        }
    }

    /// A side of a hop with these properties.
    pub(super) fn agreed(side: cgo::Side, material: &KeyMaterial, granted: Wishes) -> Hop {
        let Wishes { congestion_control, cgo } = granted;
        if !cgo {
            return Hop { congestion_control, ..Hop::plain(&material.hop()) };
        }
        let keys = material.cgo();
        Hop {
            forward: Layer::Cgo(cgo::Layer::new(side, &keys.forward)),
            backward: Layer::Cgo(cgo::Layer::new(side, &keys.backward)),
            congestion_control,
            binding: keys.binding,
        }
    }

    /// The terms that the key exchange agreed on.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            congestion_control: Some(self.congestion_control),
            cgo: self.format() == Format::V1,
            data_bytes: self.format().data_bytes(),
            circuit_bytes: self.format().circuit_bytes(),
        }
    }

    /// The format of messages to and from this hop.
    pub(super) fn format(&self) -> Format {
        self.forward.format()
    }

    /// The digests of the last messages: away from the client, and to it.
    pub(super) fn digests(&self) -> [Digest; 2] {
        [self.forward.digest(), self.backward.digest()]
    }

    /// Bytes that only the two ends of the key exchange know.
    pub(super) fn binding(&self) -> &[u8; 20] {
        &self.binding
    }

    /// Frees memory if no cell has passed since the last call.
    pub(super) fn rest(&mut self) {
        self.forward.rest();
        self.backward.rest();
    }

    /// Relay: removes the layer of a cell from the client. Returns whether it is for this hop.
    pub(super) fn peel(&mut self, early: bool, body: &mut [u8; BODY]) -> bool {
        self.forward.recognises(early, body)
    }

    /// Relay: adds a layer to a cell to the client.
    pub(super) fn wrap(&mut self, body: &mut [u8; BODY]) {
        self.backward.pass(false, body);
    }

    /// Relay: adds the layer of a new cell to the client.
    pub(super) fn originate(&mut self, body: &mut [u8; BODY]) {
        self.backward.seal(false, body);
    }

    /// Client: adds the layer of a new cell to this hop.
    pub(super) fn seal(&mut self, early: bool, body: &mut [u8; BODY]) {
        self.forward.seal(early, body);
    }

    /// Client: adds the layer of a cell to a later hop.
    pub(super) fn cover(&mut self, early: bool, body: &mut [u8; BODY]) {
        self.forward.pass(early, body);
    }

    /// Client: removes the layer of a cell. Returns whether it is from this hop.
    pub(super) fn open(&mut self, body: &mut [u8; BODY]) -> bool {
        self.backward.recognises(false, body)
    }
}
