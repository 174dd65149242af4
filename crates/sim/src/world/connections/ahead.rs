//! Looking ahead: in a large network nearly everything that an event is about was last touched a round trip ago, and
//! has
//! left the processor's cache. It is touched for some dozens of events that come soon, before the first of them: the
//! processor loads it for several at a time then, instead of waiting for each.

use std::hint::black_box;

use super::ends::{Connection, Wire};
use crate::underlay::Underlay;
use crate::world::event::Event;

/// Touches what an event will need: the packet, its connection, the end that it comes to and the first cell to read.
pub(super) fn look(underlay: &Underlay<Wire>, connections: &[Option<Box<Connection>>], event: &Event) {
    let connection = match event {
        Event::Net(event) => underlay.look(*event).map(|(flow, wire)| (flow, wire.to())),
        Event::Tcp(end) => Some((end.connection.0, end.side)),
        _ => None,
    };
    if let Some((number, side)) = connection
        && let Some(connection) = connections[number as usize].as_deref()
    {
        let cell = connection.cells[usize::from(1 - side)].front();
        black_box(cell.map_or(0, |(place, cell)| place.offset() ^ u64::from(cell.circ.0)));
        black_box(connection.ends[usize::from(side)].look());
    }
}
