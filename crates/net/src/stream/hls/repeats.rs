//! Packets that a multiplexer sent twice (ISO 13818-1, section 2.4.3.3).

use std::collections::BTreeMap;

use mpeg2ts_reader::packet::Packet;
use tidegate_stream::framer::TS;

/// The last packet of each PID.
#[derive(Debug, Default)]
pub(crate) struct Repeats(BTreeMap<u16, [u8; TS]>);

impl Repeats {
    /// Whether this packet repeats the last one of its PID. Only the clock reference of a repetition may differ.
    pub(crate) fn repeats(&mut self, packet: &Packet<'_>) -> bool {
        let (bytes, Some(payload)) = (packet.buffer(), packet.payload()) else { return false };
        let last = self.0.entry(u16::from(packet.pid())).or_insert([0; TS]);
        let same = last[1..4] == bytes[1..4] && last[TS - payload.len()..] == *payload;
        last.copy_from_slice(bytes);
        same
    }

    /// Forgets all packets.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
