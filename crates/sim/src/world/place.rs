//! Where an event happens, for those who count what each place has to do.

use super::event::Event;
use super::state::World;
use crate::observe::Host;

impl World<'_> {
    /// The host that an event concerns; none for what concerns all, or nobody any more.
    pub(super) fn place(&self, event: &Event) -> Option<Host> {
        let user = |user: u32| Host(self.plan.users[user as usize].host);
        match *event {
            Event::Net(event) => self.underlay.place(event),
            Event::Tcp(end) | Event::Roomy(end) => {
                let connection = self.connections[end.connection.0 as usize].as_deref()?;
                Some(Host(connection.ends[usize::from(end.side)].host))
            }
            Event::Pump(host)
            | Event::Node(host)
            | Event::CircuitTimeout(host, _)
            | Event::HostDown(host) => Some(Host(host)),
            Event::User(number) => Some(user(number)),
            Event::Timeout(transfer) | Event::Packet(transfer, false) => {
                Some(user(self.users.transfers[transfer as usize].user))
            }
            Event::Packet(transfer, true) => Some(Host(self.users.transfers[transfer as usize].server)),
            Event::Sample | Event::OutOfBand(_) | Event::Closed(_) | Event::Measurement(_) => None,
        }
    }
}
