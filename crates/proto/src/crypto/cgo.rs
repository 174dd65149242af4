//! One direction of one hop under Counter Galois Onion (proposal 359): a tweakable wide-block cipher over each cell's
//! body. A cell that somebody changes becomes random, and every later cell with it. Each cell for this hop replaces the
//! keys, so that captured keys do not open earlier cells. The first [`TAG`] bytes of a body hold the tag, by which a hop
//! recognises its own cells. Cells under it have the message format 1 ([`super::message`]).

mod uiv;
#[cfg(test)]
mod vectors;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::layer::BODY;
use uiv::{Expanded, KEYS};
pub(crate) use uiv::{Side, TAG};

/// Bytes of key material of one direction: the keys and the first nonce.
pub(crate) const SEED: usize = KEYS + TAG;

/// One direction of one hop.
pub(crate) struct Layer {
    side: Side,
    keys: Zeroizing<[u8; KEYS]>,
    /// The tag of the next cell for this hop, or of the next cell from it, before encryption.
    nonce: Zeroizing<[u8; TAG]>,
    /// The tag of the previous cell. It is part of the tweak, which chains the cells.
    chain: [u8; TAG],
    tag: [u8; TAG],
    /// Whether a cell passed since the last [`rest`](Self::rest).
    used: bool,
    /// The expanded keys, about 2 KB. An idle layer has none.
    expanded: Option<Box<Expanded>>,
}

fn tag_of(body: &[u8; BODY]) -> [u8; TAG] {
    *body.first_chunk().expect("a body is longer than its tag")
}

impl Layer {
    /// Creates the layer with the hop's key material of this direction.
    pub(crate) fn new(side: Side, seed: &[u8; SEED]) -> Layer {
        let (keys, nonce) = seed.split_first_chunk().expect("80 = 64 + 16");
        let nonce = nonce.try_into().expect("80 = 64 + 16");
        Layer {
            side,
            keys: Zeroizing::new(*keys),
            nonce: Zeroizing::new(nonce),
            chain: [0; TAG],
            tag: [0; TAG],
            used: false,
            expanded: None,
        }
    }

    /// Frees memory if no cell has passed since the last call.
    pub(crate) fn rest(&mut self) {
        if !std::mem::replace(&mut self.used, false) {
            self.expanded = None;
        }
    }

    /// The tag with which a SENDME acknowledges the last cell that this end sent or recognised.
    pub(crate) fn tag(&self) -> [u8; TAG] {
        self.tag
    }

    /// Adds or removes this layer. `command` is the cell's: RELAY or RELAY_EARLY.
    pub(crate) fn pass(&mut self, command: u8, body: &mut [u8; BODY]) {
        let before = tag_of(body);
        self.used = true;
        let expanded = self.expanded.get_or_insert_with(|| Box::new(Expanded::new(self.side, &self.keys)));
        expanded.apply(self.side, &self.chain, command, body);
        // Both sides chain the tag that lies between them.
        self.chain = match self.side {
            Side::Client => before,
            Side::Relay => tag_of(body),
        };
    }

    /// Sender: adds this layer to a new cell. The layers of hops nearer to the sender follow with [`Layer::pass`].
    pub(crate) fn seal(&mut self, command: u8, body: &mut [u8; BODY]) {
        body[..TAG].copy_from_slice(&*self.nonce);
        self.pass(command, body);
        self.tag = tag_of(body);
        // The relay's next nonce depends on the cell, which a client knows only after it arrived.
        if self.side == Side::Relay {
            *self.nonce = self.tag;
        }
        self.update();
    }

    /// Removes this layer. Returns whether this hop is the recipient, or for a client the sender.
    pub(crate) fn recognises(&mut self, command: u8, body: &mut [u8; BODY]) -> bool {
        let before = tag_of(body);
        self.pass(command, body);
        if !bool::from(body[..TAG].ct_eq(&*self.nonce)) {
            return false;
        }
        self.tag = before;
        if self.side == Side::Client {
            *self.nonce = before;
        }
        self.update();
        true
    }

    /// Replaces the keys and the nonce, so that the previous ones cannot be computed from them.
    fn update(&mut self) {
        let expanded = self.expanded.as_mut().expect("a cell has just passed");
        let fresh = expanded.derive::<SEED>(&self.nonce);
        let (keys, nonce) = fresh.split_at(KEYS);
        self.keys.copy_from_slice(keys);
        self.nonce.copy_from_slice(nonce);
        expanded.replace(&self.keys);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::text;

    use super::*;

    const RELAY: u8 = 3;

    fn layers(side: Side) -> [[Layer; 2]; 3] {
        [1u8, 2, 3].map(|n| [10, 20].map(|way| Layer::new(side, &[n + way; SEED])))
    }

    fn body(fill: u8) -> [u8; BODY] {
        [fill; BODY]
    }

    #[test]
    fn cells_reach_their_hop_and_come_back_with_equal_tags() {
        let (mut client, mut relays) = (layers(Side::Client), layers(Side::Relay));
        for round in 0..40u8 {
            let to = usize::from(round % 3);
            let command = if round % 5 == 0 { 9 } else { RELAY };
            let mut cell = body(round);
            client[to][0].seal(command, &mut cell);
            client[..to].iter_mut().rev().for_each(|hop| hop[0].pass(command, &mut cell));
            for (n, hop) in relays[..=to].iter_mut().enumerate() {
                assert_eq!(hop[0].recognises(command, &mut cell), n == to, "round {round}, hop {n}");
            }
            assert_eq!(cell[TAG..], body(round)[TAG..]);
            assert_eq!(client[to][0].tag(), relays[to][0].tag());

            let mut cell = body(round + 100);
            relays[to][1].seal(RELAY, &mut cell);
            relays[..to].iter_mut().rev().for_each(|hop| hop[1].pass(RELAY, &mut cell));
            for (n, hop) in client[..=to].iter_mut().enumerate() {
                assert_eq!(hop[1].recognises(RELAY, &mut cell), n == to, "round {round}, hop {n}");
            }
            assert_eq!(cell[TAG..], body(round + 100)[TAG..]);
            assert_eq!(client[to][1].tag(), relays[to][1].tag());
            // Idle layers forget their expanded keys and go on.
            relays.iter_mut().flatten().for_each(|layer| (0..round % 3).for_each(|_| layer.rest()));
        }
    }

    #[test]
    fn a_changed_cell_destroys_the_circuit_and_is_random() {
        for (at, command) in [(0, RELAY), (15, RELAY), (16, RELAY), (508, RELAY), (0, 9)] {
            let mut client = Layer::new(Side::Client, &[1; SEED]);
            let mut relays = [Layer::new(Side::Relay, &[1; SEED]), Layer::new(Side::Relay, &[1; SEED])];
            let mut cell = body(7);
            client.seal(RELAY, &mut cell);
            let mut changed = cell;
            // The last case changes the command only.
            changed[at] ^= u8::from(command == RELAY);
            assert!(relays[0].recognises(RELAY, &mut cell));
            assert!(!relays[1].recognises(command, &mut changed), "byte {at}");
            let differing = cell.iter().zip(&changed).filter(|(a, b)| a != b).count();
            assert!(differing > BODY * 9 / 10, "{differing} bytes differ");
            for fill in 0..3 {
                let mut cell = body(fill);
                client.seal(RELAY, &mut cell);
                let mut again = cell;
                assert!(relays[0].recognises(RELAY, &mut cell));
                assert!(!relays[1].recognises(RELAY, &mut again), "a later cell");
            }
        }
    }

    #[test]
    fn keys_change_with_every_own_cell_only() {
        let mut relay = Layer::new(Side::Relay, &[1; SEED]);
        let mut keys = vec![relay.keys.clone()];
        for n in 0..4 {
            relay.pass(RELAY, &mut body(n));
            assert_eq!(keys.last(), Some(&relay.keys));
            relay.seal(RELAY, &mut body(n));
            assert!(!keys.contains(&relay.keys));
            keys.push(relay.keys.clone());
        }
    }

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        text::unhex(text).expect("vectors are hexadecimal")
    }

    /// A layer in the state of a vector: keys, nonce, chained tag.
    fn layer(side: Side, [keys, nonce, chain]: &[&str; 3]) -> Layer {
        let seed = unhex(&format!("{keys}{nonce}"));
        Layer { chain: unhex(chain), ..Layer::new(side, &seed) }
    }

    fn state(layer: &Layer) -> ([u8; KEYS], [u8; TAG], [u8; TAG]) {
        (*layer.keys, *layer.nonce, layer.chain)
    }

    #[test]
    fn relays_match_the_reference_implementation() {
        for (inward, before, command, cell, after, expected) in vectors::RELAY {
            let mut relay = layer(Side::Relay, before);
            let mut cell = unhex(cell);
            let [command] = unhex(command);
            if *inward {
                relay.pass(command, &mut cell);
            } else {
                relay.recognises(command, &mut cell);
            }
            assert_eq!(cell, unhex(expected));
            assert_eq!(state(&relay), state(&layer(Side::Relay, after)));
        }
        for (before, command, message, after, expected) in vectors::RELAY_ORIGINATES {
            let mut relay = layer(Side::Relay, before);
            let mut cell = unhex(&format!("{}{message}", "00".repeat(TAG)));
            let [command] = unhex(command);
            relay.seal(command, &mut cell);
            assert_eq!(cell, unhex(expected));
            assert_eq!(state(&relay), state(&layer(Side::Relay, after)));
        }
    }

    #[test]
    fn clients_match_the_reference_implementation() {
        for (before, hop, command, message, after, expected) in vectors::CLIENT_ORIGINATES {
            let mut hops = before.map(|state| layer(Side::Client, &state));
            let mut cell = unhex(&format!("{}{message}", "00".repeat(TAG)));
            let [command] = unhex(command);
            hops[hop - 1].seal(command, &mut cell);
            hops[..hop - 1].iter_mut().rev().for_each(|hop| hop.pass(command, &mut cell));
            assert_eq!(cell, unhex(expected));
            for (hop, after) in hops.iter().zip(after) {
                assert_eq!(state(hop), state(&layer(Side::Client, after)));
            }
        }
    }
}
