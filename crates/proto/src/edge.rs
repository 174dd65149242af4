//! The end of a circuit where application bytes enter and leave: SENDME windows (tor-spec, "Flow
//! control") and packaging. The client and the exit have one each.

use crate::cell::{DATA_BYTES, Message, Payload, StreamId};
use crate::node::Source;
use crate::onion::Onion;

/// Tor's fixed flow-control windows, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// In flight per circuit (CIRCWINDOW_START).
    pub circuit: u32,
    /// Acknowledged by one circuit SENDME (CIRCWINDOW_INCREMENT).
    pub circuit_increment: u32,
    /// In flight per stream (STREAMWINDOW_START).
    pub stream: u32,
    /// Acknowledged by one stream SENDME (STREAMWINDOW_INCREMENT).
    pub stream_increment: u32,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { circuit: 1000, circuit_increment: 100, stream: 500, stream_increment: 50 }
    }
}

/// Streams of one circuit at one time; more are refused (stream ids have 16 bits).
pub const MAX_STREAMS: usize = 4096;

/// The peer broke the rules of flow control; its circuit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// One end of a circuit.
#[derive(Clone, Debug)]
pub struct Edge {
    windows: Windows,
    /// Cells that may still be packaged before a SENDME arrives.
    package: u32,
    /// Cells delivered since we last sent a circuit SENDME.
    delivered: u32,
    /// Ordered by id. A circuit rarely has more than a few.
    streams: Vec<Stream>,
}

#[derive(Clone, Debug)]
struct Stream {
    id: StreamId,
    connected: bool,
    /// It had bytes left when a window or the circuit queue stopped it.
    starved: bool,
    package: u32,
    delivered: u32,
}

/// The SENDMEs owed after a delivered cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// One for the circuit.
    pub circuit: bool,
    /// One for the stream.
    pub stream: bool,
}

impl Edge {
    /// An end without streams and with full windows.
    pub fn new(windows: Windows) -> Edge {
        Edge { windows, package: windows.circuit, delivered: 0, streams: Vec::new() }
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(&mut self.streams[at])
    }

    /// Adds a stream; false if the id is taken, zero, or there are too many.
    pub fn open(&mut self, id: StreamId) -> bool {
        let Err(at) = self.streams.binary_search_by_key(&id, |stream| stream.id) else { return false };
        if id.0 == 0 || self.streams.len() >= MAX_STREAMS {
            return false;
        }
        let package = self.windows.stream;
        self.streams.insert(at, Stream { id, connected: false, starved: false, package, delivered: 0 });
        true
    }

    /// The stream's far side is connected; false if there is no such stream or it was already.
    pub fn connect(&mut self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| !std::mem::replace(&mut stream.connected, true))
    }

    /// Removes a stream; false if there is none.
    pub fn close(&mut self, id: StreamId) -> bool {
        let found = self.streams.binary_search_by_key(&id, |stream| stream.id);
        found.map(|at| self.streams.remove(at)).is_ok()
    }

    /// All streams, in order.
    pub fn ids(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.iter().map(|stream| stream.id)
    }

    /// A DATA cell arrived. Cells of a stream that was just closed still count for the circuit.
    pub fn deliver(&mut self, id: StreamId) -> Result<(Owed, bool), Violation> {
        let windows = self.windows;
        self.delivered += 1;
        // The window less the SENDMEs we sent is the peer's to use; we send them at once, so it can
        // never be more than the window ahead.
        if self.delivered > windows.circuit {
            return Err(Violation);
        }
        let circuit = self.delivered >= windows.circuit_increment;
        if circuit {
            self.delivered -= windows.circuit_increment;
        }
        let Some(stream) = self.stream(id) else { return Ok((Owed { circuit, stream: false }, false)) };
        stream.delivered += 1;
        let owed = stream.delivered >= windows.stream_increment;
        if owed {
            stream.delivered -= windows.stream_increment;
        }
        Ok((Owed { circuit, stream: owed }, true))
    }

    /// A SENDME arrived for a stream, or with id zero for the circuit. One that nothing was sent for is a
    /// violation.
    pub fn sendme(&mut self, id: StreamId) -> Result<(), Violation> {
        let windows = self.windows;
        let (window, increment, limit) = if id.0 == 0 {
            (&mut self.package, windows.circuit_increment, windows.circuit)
        } else {
            match self.stream(id) {
                Some(stream) => (&mut stream.package, windows.stream_increment, windows.stream),
                None => return Ok(()),
            }
        };
        *window += increment;
        if *window > limit { Err(Violation) } else { Ok(()) }
    }

    /// Streams that were stopped with bytes left and could go on, each with a fair share of the circuit
    /// window. `room`: cells that the circuit queue takes.
    pub fn resumable(&mut self, room: u32) -> Vec<(StreamId, u32)> {
        let cells = self.package.min(room);
        let able = |stream: &Stream| stream.starved && stream.package > 0;
        let count = self.streams.iter().filter(|stream| able(stream)).count() as u32;
        if cells == 0 || count == 0 {
            return Vec::new();
        }
        let share = cells.div_ceil(count);
        self.streams.iter().filter(|stream| able(stream)).map(|stream| (stream.id, share)).collect()
    }

    /// Packages up to `cells` cells of a connected stream; `send` gets each message. `room`: cells that
    /// the circuit queue takes.
    pub fn package<O: Onion>(
        &mut self,
        id: StreamId,
        mut cells: u32,
        room: u32,
        source: &mut dyn Source<O>,
        mut send: impl FnMut(Message<O>),
    ) {
        let mut allowed = self.package.min(room);
        let Some(stream) = self.stream(id) else { return };
        if !stream.connected {
            return;
        }
        allowed = allowed.min(stream.package);
        let mut sent = 0;
        stream.starved = true;
        while cells > 0 && sent < allowed {
            let Some((bytes, data)) = source.take(DATA_BYTES) else {
                stream.starved = false;
                break;
            };
            send(Message { stream: id, payload: Payload::Data(bytes, data) });
            sent += 1;
            cells -= 1;
        }
        stream.package -= sent;
        self.package -= sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onion::{Clear, Stamp};

    struct Endless;
    impl Source<Clear> for Endless {
        fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
            Some((max, Stamp::default()))
        }
    }

    fn packaged(edge: &mut Edge, id: StreamId, room: u32) -> u32 {
        let mut sent = 0;
        edge.package(id, u32::MAX, room, &mut Endless, |_| sent += 1);
        sent
    }

    #[test]
    fn windows_stop_and_sendmes_resume() {
        let mut edge = Edge::new(Windows::default());
        let (a, b, c) = (StreamId(1), StreamId(2), StreamId(3));
        for id in [a, b, c] {
            assert!(edge.open(id) && edge.connect(id));
        }
        assert!(!edge.open(a), "an id is used once");
        assert_eq!(packaged(&mut edge, a, u32::MAX), 500);
        assert_eq!(packaged(&mut edge, b, 256), 256);
        assert_eq!(packaged(&mut edge, b, u32::MAX), 244);
        assert_eq!(packaged(&mut edge, c, u32::MAX), 0, "the circuit window is used up");
        assert_eq!(edge.resumable(u32::MAX), []);
        edge.sendme(StreamId(0)).unwrap();
        assert_eq!(edge.resumable(u32::MAX), [(c, 100)]);
        edge.sendme(a).unwrap();
        assert_eq!(edge.resumable(u32::MAX), [(a, 50), (c, 50)]);
        assert_eq!(packaged(&mut edge, a, u32::MAX), 50);
    }

    #[test]
    fn sendmes_are_owed_every_increment_and_refused_unasked() {
        let mut edge = Edge::new(Windows::default());
        edge.open(StreamId(1));
        let mut owed = (0, 0);
        for _ in 0..1000 {
            let (now, known) = edge.deliver(StreamId(1)).unwrap();
            assert!(known);
            owed = (owed.0 + u32::from(now.circuit), owed.1 + u32::from(now.stream));
        }
        assert_eq!(owed, (10, 20));
        assert_eq!(edge.sendme(StreamId(0)), Err(Violation));
        assert_eq!(edge.sendme(StreamId(1)), Err(Violation));
        assert_eq!(edge.sendme(StreamId(9)), Ok(()), "a stream just closed is no violation");
    }
}
