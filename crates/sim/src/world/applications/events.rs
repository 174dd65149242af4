//! Events that nodes have for their hosts' applications.

use tidegate_proto::node::StreamKey;

use super::state::Applications;
use crate::world::connections::EndId;
use crate::world::network::{Network, NodeEvent, NodeEvents};

impl NodeEvents for Applications {
    fn node_event(&mut self, net: &mut Network<'_>, host: u32, event: NodeEvent) {
        match event {
            NodeEvent::Connect(stream, transfer) => self.connect_stream(net, host, stream, transfer),
            NodeEvent::Delivered(stream, bytes, stamp, cells) => {
                self.delivered(net, host, stream, (bytes, stamp), cells);
            }
            NodeEvent::Package(stream, cells) => self.package(net, host, stream, cells),
            NodeEvent::StreamConnected(stream) => self.stream_connected(net, host, stream),
            NodeEvent::StreamClosed(stream) => self.stream_closed(net, host, stream),
            NodeEvent::CircuitBuilt(circuit) => self.circuit_built(net, host, circuit),
            NodeEvent::Linked(circuit) => self.circuit_linked(net, host, circuit),
            NodeEvent::Switched(circuit) => self.circuit_switched(net, host, circuit),
            NodeEvent::CircuitClosed(circuit) => self.circuit_closed(net, host, circuit),
        }
    }

    fn read_from_server(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        end: EndId,
        cells: u32,
    ) -> u64 {
        self.package_from_server(net, host, stream, end, cells)
    }

    fn server_closed(&mut self, transfer: u32) {
        self.transfers.server_closed(transfer);
    }
}
