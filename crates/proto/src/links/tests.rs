//! Invariants of KIST for every channel and circuit, under any traffic and socket state.

use std::sync::Arc;

use crate::cell::{Cell, CircId, Command, DestroyReason, StreamId};
use crate::links::kist::{KistParameters, Socket};
use crate::links::{ChannelId, Config, Departure, LegId, Limits, Links, Side};
use crate::node::{Budget, CircuitKey, Sink};
use crate::onion::{Clear, ClearBody, Onion, Stamp};
use crate::scheduler::{Discipline, Ewma, RoundRobin};
use proptest::prelude::*;
use tidegate_control::units::{Span, Time};

const CHANNELS: usize = 4;
const CIRCUITS: usize = 3;
/// Bytes of a cell as tor counts them.
const CELL: u64 = 543;

/// Bytes that may be written to a socket by tor's formula (`update_socket_info_impl`).
fn limit(socket: Socket, factor: f64, buffered_bytes: u64) -> u64 {
    let segment = u64::from(socket.segment_bytes);
    let room = u64::from(socket.window.saturating_sub(socket.unacknowledged)) * segment;
    let extra = (u64::from(socket.window) * segment) as f64 * factor;
    (room + extra as u64).saturating_sub(socket.unsent_bytes + buffered_bytes)
}

fn sockets() -> impl Strategy<Value = [Socket; CHANNELS]> {
    let socket = (0u32..40, 0u32..40, 0u64..60_000).prop_map(|(window, unacknowledged, unsent_bytes)| {
        Socket { window, unacknowledged, unsent_bytes, segment_bytes: 1448 }
    });
    proptest::array::uniform(socket)
}

/// Takes cells from an output buffer.
struct Taken {
    left: u64,
    cells: Vec<Cell<Clear>>,
}

impl Sink<Clear> for Taken {
    fn budget(&mut self) -> Budget {
        if self.left == 0 { Budget::Paused } else { Budget::Cells(1) }
    }
    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }
    fn write(&mut self, departure: Departure<Clear>) {
        self.left -= 1;
        self.cells.push(departure.cell);
    }
}

fn take(links: &mut Links<Clear>, now: Time, channel: ChannelId, most: u64) -> Vec<Cell<Clear>> {
    let mut taken = Taken { left: most, cells: Vec::new() };
    links.drain(now, channel, &mut taken);
    taken.cells
}

proptest! {
    /// A run writes exactly the cells that a socket's limit allows, independent of the other channels. Each circuit's
    /// cells keep their order, and runs are at most an interval apart.
    #[test]
    fn a_run_uses_every_socket_up_to_its_limit(
        ewma in any::<bool>(), factor in 0.0f64..3.0, counts_unsent in any::<bool>(),
        steps in proptest::collection::vec(
            (proptest::collection::vec((0..CHANNELS, 0..CIRCUITS, 1u8..40), 0..6), sockets(), 0u64..40_000, 0u64..60),
            1..25,
        ),
    ) {
        let parameters = KistParameters { buffer_factor: factor, counts_unsent, ..KistParameters::default() };
        let half_life = Span::from_secs(30);
        let scheduler: Arc<dyn Discipline> =
            if ewma { Arc::new(Ewma { half_life }) } else { Arc::new(RoundRobin) };
        let mut links: Links<Clear> = Links::new(Config { scheduler, kist: Some(parameters), ..Config::default() }, None);
        let channels: Vec<_> = (0..CHANNELS).map(|_| links.accept(None)).collect();
        let legs: Vec<Vec<LegId>> = (channels.iter().enumerate())
            .map(|(c, id)| (0..CIRCUITS).map(|k| links.begin_leg(*id, CircuitKey((c * CIRCUITS + k) as u32), Side::Prev, false)).collect())
            .collect();
        // The layer number identifies a cell of a circuit.
        let mut sent = [[0u8; CIRCUITS]; CHANNELS];
        let mut seen = [[0u8; CIRCUITS]; CHANNELS];
        let mut queued = [0u64; CHANNELS];
        let (mut now, mut last) = (Time::ZERO, None);
        for (bursts, sockets, wait_us, drain) in steps {
            now += Span::from_micros(wait_us);
            for (channel, circuit, cells) in bursts {
                for _ in 0..cells {
                    let layers = sent[channel][circuit];
                    sent[channel][circuit] = layers.wrapping_add(1);
                    let body = ClearBody::Data { layers, bytes: 498, stream: StreamId(1), stamp: Stamp::default() };
                    prop_assert!(links.push(now, legs[channel][circuit], Command::Relay, body).is_ok());
                    queued[channel] += 1;
                }
            }
            let due = links.next_run().map(|run| run.due);
            if let Some(at) = due {
                prop_assert!(at <= now + parameters.interval);
                prop_assert!(last.is_none_or(|last: Time| at >= last + parameters.interval));
            }
            let waiting = queued.iter().any(|cells| *cells > 0);
            prop_assert!(!waiting || due.is_some(), "a channel with cells gets a run");
            if let Some(at) = due {
                now = now.max(at);
                last = Some(now);
                let before: Vec<u64> = channels.iter().map(|id| links.ready(*id)).collect();
                links.begin_run(now);
                while let Some(id) = links.next_inspection() {
                    let at = channels.iter().position(|other| *other == id).unwrap();
                    links.inspected(now, id, Some(sockets[at]));
                }
                for (c, id) in channels.iter().enumerate() {
                    let moved = links.ready(*id) - before[c];
                    let unsent_bytes = if counts_unsent { sockets[c].unsent_bytes } else { 0 };
                    let allowed = limit(Socket { unsent_bytes, ..sockets[c] }, factor, before[c] * 514) / CELL;
                    prop_assert_eq!(moved, queued[c].min(allowed), "channel {}", c);
                    queued[c] -= moved;
                }
            }
            for (c, id) in channels.iter().enumerate() {
                for cell in take(&mut links, now, *id, drain) {
                    // Circuit ids follow the order of legs and start at 1.
                    let circuit = (cell.circ.0 & 0xff) as usize - 1;
                    let ClearBody::Data { layers, .. } = cell.body else { panic!("{:?}", cell.body) };
                    prop_assert_eq!(layers, seen[c][circuit], "in order");
                    seen[c][circuit] = seen[c][circuit].wrapping_add(1);
                }
            }
        }
    }
}

/// A neighbour reads nothing, on many connections with a cell each. Each look at a socket takes a system call.
#[test]
fn full_sockets_are_looked_at_less_often() {
    const CONNECTIONS: u32 = 200;
    let kist = Some(KistParameters::default());
    let limits = Some(Limits::default());
    let mut links: Links<Clear> = Links::new(Config { kist, limits, ..Config::default() }, None);
    let legs: Vec<(ChannelId, LegId)> = (0..CONNECTIONS)
        .map(|key| {
            let channel = links.accept(None);
            (channel, links.begin_leg(channel, CircuitKey(key), Side::Prev, false))
        })
        .collect();
    let full = Socket { window: 10, unacknowledged: 10, unsent_bytes: 1 << 20, segment_bytes: 1448 };
    let free = Socket { unacknowledged: 0, unsent_bytes: 0, ..full };
    for (_, leg) in &legs {
        links.push(Time::ZERO, *leg, Command::Relay, Clear::empty()).unwrap();
    }
    let mut looks = 0;
    let mut now = Time::ZERO;
    // A cell for the first one comes later, and its socket is free after two seconds.
    while let Some(run) = links.next_run()
        && links.ready(legs[0].0) == 0
    {
        now = now.max(run.due);
        assert!(
            now < Time::ZERO + Span::from_millis(2500),
            "it is looked at again after an eighth of that time"
        );
        links.begin_run(now);
        while let Some(id) = links.next_inspection() {
            looks += 1;
            let is_free = id == legs[0].0 && now >= Time::ZERO + Span::from_secs(2);
            links.inspected(now, id, Some(if is_free { free } else { full }));
        }
        if now > Time::ZERO + Span::from_secs(1) {
            let _ = links.push(now, legs[0].1, Command::Relay, Clear::empty());
        }
    }
    assert!(links.ready(legs[0].0) > 0);
    // In each run of 2 ms it would be 200,000.
    assert!(looks < 60 * CONNECTIONS, "{looks} looks in 2 s");
}

#[test]
fn the_channel_of_the_quietest_circuit_is_written_first() {
    let half_life = Span::from_secs(30);
    let kist = Some(KistParameters::default());
    let mut links: Links<Clear> =
        Links::new(Config { scheduler: Arc::new(Ewma { half_life }), kist, ..Config::default() }, None);
    let [loud, quiet] = [0, 1].map(|key| {
        let channel = links.accept(None);
        (channel, links.begin_leg(channel, CircuitKey(key), Side::Prev, false))
    });
    let free = Socket { window: 1000, unacknowledged: 0, unsent_bytes: 0, segment_bytes: 1448 };
    let mut run = |now, cells: [u32; 2]| {
        for (cells, (_, leg)) in cells.iter().zip([loud, quiet]) {
            (0..*cells).for_each(|_| links.push(now, leg, Command::Relay, Clear::empty()).unwrap());
        }
        let at = links.next_run().unwrap().due;
        links.begin_run(at);
        while let Some(id) = links.next_inspection() {
            links.inspected(at, id, Some(free));
        }
        let order: Vec<_> = std::iter::from_fn(|| links.next_flushable()).collect();
        for channel in &order {
            take(&mut links, at, *channel, u64::MAX);
        }
        (at, order)
    };
    let (at, order) = run(Time::ZERO, [100, 1]);
    assert_eq!(order, [loud.0, quiet.0], "no circuit has sent: in the order of arrival");
    assert_eq!(run(at, [100, 1]).1, [quiet.0, loud.0]);
}

/// A socket of loopback or of a data centre has room for megabytes. A relay once took the cells that KIST put into its
/// output buffer for a flood and closed the channel with all circuits on it.
#[test]
fn cells_that_kist_moves_are_not_a_flood() {
    let config = Config { kist: Some(KistParameters::default()), unread_limit: 64, ..Config::default() };
    let mut links: Links<Clear> = Links::new(config, None);
    let channel = links.accept(None);
    let leg = links.begin_leg(channel, CircuitKey(0), Side::Prev, false);
    (0..5_000).for_each(|_| links.push(Time::ZERO, leg, Command::Relay, Clear::empty()).unwrap());
    let at = links.next_run().unwrap().due;
    links.begin_run(at);
    let roomy = Socket { window: 1000, unacknowledged: 0, unsent_bytes: 0, segment_bytes: 65_483 };
    assert_eq!(links.next_inspection(), Some(channel));
    links.inspected(at, channel, Some(roomy));
    assert_eq!(links.ready(channel), 5_000);
    assert!(!links.is_flooded(channel));
    for _ in 0..65 {
        links.refuse(at, channel, CircId(9), DestroyReason::NONE);
    }
    assert!(links.is_flooded(channel), "answers to a neighbour that does not read are one");
}
