//! A measurement circuit over a connection of the run, and the pipe through the relay.

use tidegate_control::random::Random;
use tidegate_control::units::Time;
use tidegate_proto::crypto::ntor::{self, ClientHandshake, RelaySecret};
use tidegate_proto::flashflow::cell::{self, CELL, Token};
use tidegate_proto::flashflow::load::{BATCH, Load, Turn};
use tidegate_proto::flashflow::{EchoError, MeasurerEnd, Open, RelayEnd};

use crate::tcp::Arrival;
use crate::world::connections::{EndId, Sockets};

const CELL_BYTES: u64 = CELL as u64;

/// Random bytes for keys.
pub(in crate::world) fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    let mut bytes = [0; N];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&random.bits().to_be_bytes()[..part.len()]);
    }
    bytes
}

/// The measurer's side of a circuit's connection; it opened it.
const MEASURER: u8 = 0;

/// Cells in the relay: read, waiting for permission, waiting for space in the send buffer.
pub(in crate::world) struct Pipe {
    /// The relay's end of the circuit.
    end: EndId,
    /// Bytes of a cell that has not arrived in full.
    partial: u64,
    /// Whole cells that have been read and wait for permission.
    held: u64,
    asked: bool,
    /// Decrypted and held back.
    kept: u64,
    /// Granted and not yet written.
    out: u64,
}

impl Pipe {
    fn new(end: EndId) -> Pipe {
        Pipe { end, partial: 0, held: 0, asked: false, kept: 0, out: 0 }
    }

    pub(crate) fn granted(&mut self, bytes: u64) {
        self.asked = false;
        self.held -= bytes;
        self.out += bytes;
    }

    /// Keeps bytes back that were granted, until [`release`](Self::release).
    pub(crate) fn keep(&mut self, bytes: u64) {
        self.asked = false;
        self.held -= bytes;
        self.kept += bytes;
    }

    /// Releases as many kept bytes as `allowed` says; returns how many.
    pub(crate) fn release(&mut self, allowed: impl FnOnce(u64) -> u64) -> u64 {
        let bytes = allowed(self.kept);
        self.kept -= bytes;
        self.out += bytes;
        bytes
    }

    /// Writes and reads what it can; returns the bytes to ask permission for. As on sockets, nothing
    /// is read before all that was read is written.
    pub(crate) fn pump(&mut self, sockets: &mut Sockets<'_>) -> Option<u64> {
        if self.out > 0 {
            self.out -= sockets.write(self.end, self.out);
        }
        if self.out > 0 || self.asked {
            return None;
        }
        if self.held == 0 {
            let received = sockets.read(self.end, BATCH as u64 * CELL_BYTES - self.partial);
            self.partial += received;
            self.held = self.partial / CELL_BYTES * CELL_BYTES;
            self.partial %= CELL_BYTES;
        }
        self.asked = self.held > 0;
        self.asked.then_some(self.held)
    }
}

enum Stage {
    /// The measurer waits for TCP, then for the answer to its onion skin.
    Opening(Option<(ClientHandshake, Box<[u8; CELL]>)>),
    Open(Box<(MeasurerEnd, RelayEnd)>),
    Refused,
}

pub(in crate::world) struct Circuit {
    pub session: usize,
    pub member: usize,
    pub pipe: Pipe,
    /// Whether it stands in its member's queue of turns.
    pub waits: bool,
    circ: u32,
    /// The measurer's end.
    pub end: EndId,
    open: Open,
    stage: Stage,
    /// The relay's keys and answer, until the measurer has it.
    answered: Option<(RelayEnd, Box<[u8; CELL]>)>,
    in_flight: u64,
    partial: u64,
}

impl Circuit {
    pub(crate) fn new(session: usize, member: usize, circ: u32, end: EndId, open: &Open) -> Circuit {
        Circuit {
            session,
            member,
            pipe: Pipe::new(end.other()),
            waits: false,
            circ,
            end,
            open: open.clone(),
            stage: Stage::Opening(None),
            answered: None,
            in_flight: 0,
            partial: 0,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    /// Continues the handshake after an arrival. Returns whether the circuit opened (true) or was refused (false) just
    /// now. The caller closes the connection of a refused one.
    pub(crate) fn handshake(
        &mut self,
        sockets: &mut Sockets<'_>,
        side: u8,
        arrival: Arrival,
        secret: &RelaySecret,
        random: &mut Random,
        admits: impl FnOnce(&Token) -> bool,
    ) -> Option<bool> {
        let Stage::Opening(asked) = &mut self.stage else { return None };
        if side == MEASURER && arrival.established {
            let (handshake, skin) = ClientHandshake::start(self.open.relay, bytes(random));
            *asked = Some((handshake, Box::new(cell::create(self.circ, &self.open.token, &skin))));
            sockets.write(self.end, CELL_BYTES);
            return None;
        }
        // Both messages of the handshake are one cell; parts of a cell wait.
        let end = EndId { side, ..self.end };
        if sockets.readable(end) < CELL_BYTES {
            return None;
        }
        sockets.read(end, CELL_BYTES);
        if side != MEASURER {
            // Links carry byte counts, so the cell's content is handed over here.
            let (_, create) = asked.as_ref()?;
            let (token, skin) = cell::parse_create(create)?;
            // The relay refuses circuits that the coordinator has not announced.
            let answer = admits(&token).then(|| ntor::answer(secret, &skin, bytes(random)));
            let Some(Ok((keys, reply))) = answer else {
                self.stage = Stage::Refused;
                return Some(false);
            };
            let created = Box::new(cell::created(self.circ, &reply));
            self.answered = Some((RelayEnd::new(self.circ, &keys), created));
            sockets.write(self.end.other(), CELL_BYTES);
            return None;
        }
        let ((handshake, _), (theirs, created)) = (asked.take()?, self.answered.take()?);
        let keys = cell::parse_created(&created, self.circ).and_then(|reply| handshake.finish(&reply).ok());
        let Some(keys) = keys else {
            self.stage = Stage::Refused;
            return Some(false);
        };
        let ours = MeasurerEnd::new(self.circ, &keys, &bytes(random), self.open.check_one_in);
        self.stage = Stage::Open(Box::new((ours, theirs)));
        Some(true)
    }

    /// Sends cells if the load lets it.
    pub(crate) fn send(&mut self, sockets: &mut Sockets<'_>, now: Time, load: &mut Load) -> Turn {
        let room = sockets.space(self.end) / CELL_BYTES;
        let turn = load.turn(now, self.in_flight, room);
        match turn {
            Turn::Send(cells) => {
                self.in_flight += cells;
                sockets.write(self.end, cells * CELL_BYTES);
            }
            Turn::At(_) => {}
            Turn::Full => self.waits = false,
        }
        turn
    }

    /// Takes returned cells; returns their bytes and how many were checked. The content of cells follows from the keys
    /// and their number, so it is made when they return.
    pub(crate) fn take_back(
        &mut self,
        sockets: &mut Sockets<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(u64, u32), EchoError> {
        let Stage::Open(ends) = &mut self.stage else { return Ok((0, 0)) };
        self.partial += sockets.read(self.end, u64::MAX);
        let (mut bytes, mut checked) = (0, 0);
        while self.partial >= CELL_BYTES {
            let cells = (self.partial / CELL_BYTES).min(BATCH as u64);
            scratch.resize(cells as usize * CELL, 0);
            ends.0.fill(scratch);
            ends.1.answer(scratch)?;
            checked += ends.0.receive(scratch)?;
            self.partial -= cells * CELL_BYTES;
            self.in_flight -= cells;
            bytes += cells * CELL_BYTES;
        }
        Ok((bytes, checked))
    }
}
