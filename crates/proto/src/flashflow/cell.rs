//! Measurement cells as bytes: field positions, command numbers, and a buffer that splits a stream into cells.

use crate::crypto::ntor;

/// Bytes of a cell: circuit id (4), command (1), body (509).
pub const CELL: usize = 514;
/// Bytes of a cell before its body.
pub const HEADER: usize = 5;

/// Tor's RELAY.
pub(crate) const RELAY: u8 = 3;
/// Tor's CREATED2, which also answers [`CREATE_MEASUREMENT`].
pub(crate) const CREATED2: u8 = 11;
/// Command of messages between roles ([`Message`](super::Message)), on circuit 0.
///
/// Tor assigned no numbers to proposal 316; 96 and up are free among the commands of fixed-size cells.
pub const MEASUREMENT: u8 = 96;
/// Begins a measurement circuit: carries the measurement's token, then ntor's onion skin.
pub const CREATE_MEASUREMENT: u8 = 97;

/// Identifies a measurement. It binds a circuit to the measurement; an address would not prove anything.
pub type Token = [u8; 16];

/// The cell that begins measurement circuit `circ`.
pub fn create(circ: u32, token: &Token, skin: &[u8; ntor::ONION_SKIN]) -> [u8; CELL] {
    let mut cell = empty(circ, CREATE_MEASUREMENT);
    cell[HEADER..HEADER + 16].copy_from_slice(token);
    cell[HEADER + 16..HEADER + 16 + skin.len()].copy_from_slice(skin);
    cell
}

/// Parses a [`CREATE_MEASUREMENT`] cell: its token and onion skin; `None` unless the rest is zero.
pub fn parse_create(cell: &[u8; CELL]) -> Option<(Token, [u8; ntor::ONION_SKIN])> {
    let body = &cell[HEADER..];
    let used = 16 + ntor::ONION_SKIN;
    let well_formed =
        cell[4] == CREATE_MEASUREMENT && circ(cell) != 0 && body[used..].iter().all(|b| *b == 0);
    well_formed.then(|| (body[..16].try_into().expect("16"), body[16..used].try_into().expect("84")))
}

/// The cell that answers it, with the length of the reply in front, as in CREATED2.
pub fn created(circ: u32, reply: &[u8; ntor::REPLY]) -> [u8; CELL] {
    let mut cell = empty(circ, CREATED2);
    cell[HEADER..HEADER + 2].copy_from_slice(&(ntor::REPLY as u16).to_be_bytes());
    cell[HEADER + 2..HEADER + 2 + ntor::REPLY].copy_from_slice(reply);
    cell
}

/// Parses a CREATED2 cell for circuit `expected`: the reply; `None` unless the rest is zero.
pub fn parse_created(cell: &[u8; CELL], expected: u32) -> Option<[u8; ntor::REPLY]> {
    let (length, rest) = cell[HEADER..].split_at(2);
    let well_formed = cell[4] == CREATED2
        && circ(cell) == expected
        && length == (ntor::REPLY as u16).to_be_bytes()
        && rest[ntor::REPLY..].iter().all(|b| *b == 0);
    well_formed.then(|| rest[..ntor::REPLY].try_into().expect("64"))
}

/// The circuit a cell belongs to.
pub fn circ(cell: &[u8; CELL]) -> u32 {
    u32::from_be_bytes(cell[..4].try_into().expect("4 bytes"))
}

/// A cell with a zero body.
pub fn empty(circ: u32, command: u8) -> [u8; CELL] {
    let mut cell = [0; CELL];
    cell[..4].copy_from_slice(&circ.to_be_bytes());
    cell[4] = command;
    cell
}

/// Received bytes that are not yet split into cells.
#[derive(Debug)]
pub struct CellBuffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl CellBuffer {
    /// A buffer for `cells` cells.
    ///
    /// # Panics
    /// If `cells` is zero.
    pub fn new(cells: usize) -> CellBuffer {
        assert!(cells > 0, "a buffer holds at least one cell");
        CellBuffer { bytes: vec![0; cells * CELL], filled: 0 }
    }

    /// Free space for the next bytes; report their number with [`filled`](Self::filled).
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Reports that `bytes` bytes were put into [`space`](Self::space).
    pub fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
        debug_assert!(self.filled <= self.bytes.len());
    }

    /// The complete cells.
    pub fn cells(&mut self) -> &mut [u8] {
        let whole = self.filled / CELL * CELL;
        &mut self.bytes[..whole]
    }

    /// Removes the complete cells and keeps the bytes after them.
    pub fn consume(&mut self) {
        let whole = self.filled / CELL * CELL;
        self.bytes.copy_within(whole..self.filled, 0);
        self.filled -= whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn handshakes_survive_the_way_there_and_back() {
        let token = [7; 16];
        let skin = [9; ntor::ONION_SKIN];
        let mut cell = create(5, &token, &skin);
        assert_eq!(parse_create(&cell), Some((token, skin)));
        cell[CELL - 1] = 1;
        assert_eq!(parse_create(&cell), None, "padding must be zero");
        assert_eq!(parse_create(&create(0, &token, &skin)), None, "circuit 0 is not a circuit");
        let reply = [3; ntor::REPLY];
        let mut cell = created(5, &reply);
        assert_eq!(parse_created(&cell, 5), Some(reply));
        assert_eq!(parse_created(&cell, 6), None);
        cell[HEADER + 1] -= 1;
        assert_eq!(parse_created(&cell, 5), None);
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_handshake_nor_a_panic(bytes in prop::collection::vec(any::<u8>(), CELL)) {
            let cell: [u8; CELL] = bytes.try_into().unwrap();
            prop_assert_eq!(parse_create(&cell), None);
            prop_assert_eq!(parse_created(&cell, 5), None);
        }

        #[test]
        fn cells_come_out_as_they_went_in(pieces in prop::collection::vec(1usize..1200, 1..40)) {
            let mut buffer = CellBuffer::new(3);
            let (mut next_in, mut next_out) = (0u8, 0u8);
            for piece in pieces {
                let mut left = piece;
                while left > 0 {
                    let space = buffer.space();
                    let n = space.len().min(left);
                    for byte in &mut space[..n] {
                        *byte = next_in;
                        next_in = next_in.wrapping_add(1);
                    }
                    buffer.filled(n);
                    left -= n;
                    prop_assert_eq!(buffer.cells().len() % CELL, 0);
                    for byte in buffer.cells() {
                        prop_assert_eq!(*byte, next_out);
                        next_out = next_out.wrapping_add(1);
                    }
                    buffer.consume();
                }
            }
        }
    }
}
