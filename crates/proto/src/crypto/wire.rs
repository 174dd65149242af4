//! Wire format of cells (tor-spec, "Cell packet format"): 514 bytes, or variable length.

use super::encrypted::Encrypted;
use super::hop::{RELAY, RELAY_EARLY};
use super::layer::{Body, Buffer};
use crate::cell::{Cell, CircId, Command, Nonce};
use crate::onion::Onion as _;

/// Commands of cells that concern the connection, not a circuit.
pub mod command {
    /// Keeps a connection from idling.
    pub const PADDING: u8 = 0;
    /// The link protocol versions of the sender.
    pub const VERSIONS: u8 = 7;
    /// Ends the handshake: time and addresses.
    pub const NETINFO: u8 = 8;
    /// Negotiates padding.
    pub const PADDING_NEGOTIATE: u8 = 12;
    /// Padding of variable length.
    pub const VPADDING: u8 = 128;
    /// The certificates of the sender.
    pub const CERTS: u8 = 129;
    /// The challenge that the initiator signs.
    pub const AUTH_CHALLENGE: u8 = 130;
    /// The initiator's signature.
    pub const AUTHENTICATE: u8 = 131;
}

/// Circuit id and command.
const HEADER: usize = 5;
/// A whole cell of fixed length.
pub const FIXED: usize = 514;
/// Maximum size of an accepted variable-length cell: several times what certificates need.
const LONGEST: usize = 8192;

/// Whether cells with this command have variable length.
pub fn is_variable(command: u8) -> bool {
    command == command::VERSIONS || command >= 128
}

/// Appends a cell of circuit 0. Fixed-length cells are padded with zeros.
pub(crate) fn write(command: u8, body: &[u8], wire: &mut Vec<u8>) {
    let at = wire.len();
    wire.extend_from_slice(&[0, 0, 0, 0, command]);
    if is_variable(command) {
        wire.extend_from_slice(&(body.len() as u16).to_be_bytes());
        wire.extend_from_slice(body);
    } else {
        wire.extend_from_slice(body);
        wire.resize(at + FIXED, 0);
    }
}

/// Commands of moves between neighbours ([`crate::switching`]). They extend Tor's numbers; the cells have variable
/// length and contain a nonce only.
const LEAVE: u8 = 241;
const JOIN: u8 = 242;
const CONGESTED: u8 = 243;
/// Command of messages between controllers ([`crate::control::predictor`]).
const PLAN: u8 = 244;

/// Appends a cell in wire format.
pub fn write_cell(cell: &Cell<Encrypted>, bytes: &mut Vec<u8>) {
    let (number, said): (u8, &[u8]) = match &cell.command {
        Command::Relay => (RELAY, &cell.body.0[..]),
        Command::Destroy => (4, &cell.body.0[..]),
        Command::CreateFast => (5, &cell.body.0[..]),
        Command::CreatedFast => (6, &cell.body.0[..]),
        Command::Early => (RELAY_EARLY, &cell.body.0[..]),
        Command::Create => (10, &cell.body.0[..]),
        Command::Created => (11, &cell.body.0[..]),
        Command::Leave => (LEAVE, Encrypted::plain(&cell.body)),
        Command::Join => (JOIN, Encrypted::plain(&cell.body)),
        Command::Congested => (CONGESTED, &[]),
        Command::Plan => (PLAN, Encrypted::plain(&cell.body)),
    };
    bytes.extend_from_slice(&cell.circ.0.to_be_bytes());
    bytes.push(number);
    if is_variable(number) {
        bytes.extend_from_slice(&(said.len() as u16).to_be_bytes());
    }
    bytes.extend_from_slice(said);
}

/// Parses a cell. `None` if the command does not concern circuits.
pub fn read_cell(circ: CircId, number: u8, said: &[u8]) -> Option<Cell<Encrypted>> {
    let command = circuit_command(number, said)?;
    let body = match command {
        Command::Plan | Command::Leave | Command::Join => Encrypted::from_plain(said.to_vec()),
        // CONGESTED, one of our own cells, is empty.
        _ => said.try_into().map_or_else(|_| Encrypted::empty(), |said| Body(Buffer::of(said))),
    };
    Some(Cell { circ, command, body })
}

/// Parses the command of a cell. `None` if it does not concern circuits.
pub fn circuit_command(number: u8, body: &[u8]) -> Option<Command> {
    let has_nonce = body.len() >= size_of::<Nonce>();
    match number {
        RELAY => Some(Command::Relay),
        4 => Some(Command::Destroy),
        5 => Some(Command::CreateFast),
        6 => Some(Command::CreatedFast),
        RELAY_EARLY => Some(Command::Early),
        10 => Some(Command::Create),
        11 => Some(Command::Created),
        LEAVE if has_nonce => Some(Command::Leave),
        JOIN if has_nonce => Some(Command::Join),
        CONGESTED => Some(Command::Congested),
        PLAN => Some(Command::Plan),
        _ => None,
    }
}

/// A variable-length cell exceeds the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// A received cell: circuit id, command and body.
pub(crate) type Raw<'a> = (CircId, u8, &'a [u8]);

/// Splits a byte stream into cells. It never holds more than one read and one cell.
pub struct Splitter {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Bytes per read.
const READ: usize = 32 * FIXED;

impl Splitter {
    /// Starts with bytes that were read already.
    pub fn new(first: &[u8]) -> Splitter {
        let mut bytes = first.to_vec();
        bytes.resize(first.len() + READ, 0);
        Splitter { bytes, start: 0, end: first.len() }
    }

    /// The buffer to read into. Call [`filled`](Self::filled) afterwards.
    pub fn space(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < self.end + READ {
            self.bytes.resize(self.end + READ, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Notes how many bytes were read.
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// The remaining bytes, less than a whole cell.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Takes the next whole cell.
    ///
    /// # Errors
    /// If the cell is too long.
    pub fn take(&mut self) -> Result<Option<Raw<'_>>, TooLong> {
        let bytes = &self.bytes[self.start..self.end];
        let Some((circ, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let Some((&command, rest)) = rest.split_first() else { return Ok(None) };
        let (head, length) = if is_variable(command) {
            let Some((length, _)) = rest.split_first_chunk::<2>() else { return Ok(None) };
            (HEADER + 2, usize::from(u16::from_be_bytes(*length)))
        } else {
            (HEADER, FIXED - HEADER)
        };
        if length > LONGEST {
            return Err(TooLong);
        }
        if bytes.len() < head + length {
            return Ok(None);
        }
        let at = self.start + head;
        self.start = at + length;
        Ok(Some((CircId(u32::from_be_bytes(*circ)), command, &self.bytes[at..at + length])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_however_they_are_cut() {
        let mut wire = Vec::new();
        write(command::PADDING, &[1, 2], &mut wire);
        write(command::VPADDING, &[7; 300], &mut wire);
        write(command::CERTS, &[], &mut wire);
        for cut in 1..40 {
            let (mut splitter, mut found) = (Splitter::new(&[]), Vec::new());
            for piece in wire.chunks(cut * 13) {
                splitter.space()[..piece.len()].copy_from_slice(piece);
                splitter.filled(piece.len());
                while let Some((circ, command, body)) = splitter.take().unwrap() {
                    assert_eq!(circ, CircId(0));
                    found.push((command, body.len()));
                }
            }
            assert_eq!(found, [(0, 509), (128, 300), (129, 0)]);
            assert!(splitter.rest().is_empty());
        }
        let mut splitter = Splitter::new(&[0, 0, 0, 0, 200, 0xff, 0xff]);
        assert_eq!(splitter.take(), Err(TooLong), "the splitter does not wait for its end");
    }
}
