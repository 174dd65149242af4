//! Circuits and cells that cross from one shard of a relay to another ([`tidegate_proto::relay`]).
//!
//! Between two shards runs one bounded queue in each direction. While it is full, cells wait in the circuit queues of the
//! shard that sends them, where its scheduler orders them.

use tidegate_proto::cell::Cell;
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Node as _, Sink};
use tidegate_proto::relay::{Between, HandedOver};
use tokio::sync::mpsc;

use super::exit::Exiting;
use crate::batch::ONE_RECORD;
use crate::link;

/// Messages that a queue between two shards holds.
const WAITING: usize = 2;

/// One message of a queue: ends of circuits, then cells of circuits from relays, and of circuits from clients.
pub(crate) struct Crossed {
    handed: Vec<HandedOver<Encrypted>>,
    cells: [Vec<Cell<Encrypted>>; 2],
}

/// One shard's ends of the two queues between it and another.
pub(crate) struct Crossing {
    to: mpsc::Sender<Crossed>,
    from: mpsc::Receiver<Crossed>,
}

/// The ends of the queues between each pair of `count` shards: of each shard, by the other's number.
pub(crate) fn crossings(count: usize) -> Vec<Vec<Option<Crossing>>> {
    let mut all: Vec<Vec<Option<Crossing>>> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut newest: Vec<Option<Crossing>> = Vec::with_capacity(count);
        for earlier in &mut all {
            let [(to, from), (back, of)] = [(), ()].map(|()| mpsc::channel(WAITING));
            newest.push(Some(Crossing { to, from: of }));
            earlier.push(Some(Crossing { to: back, from }));
        }
        // A shard does not have a queue to itself.
        newest.push(None);
        all.push(newest);
    }
    all
}

/// The cells of one channel that cross at once: as many as fill a TLS record.
struct Cells<'a>(&'a mut Vec<Cell<Encrypted>>);

impl Sink<Encrypted> for Cells<'_> {
    fn budget(&mut self) -> Budget {
        match ONE_RECORD.saturating_sub(self.0.len()) as u32 {
            0 => Budget::Blocked,
            cells => Budget::Cells(cells),
        }
    }

    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }

    fn write(&mut self, departure: Departure<Encrypted>) {
        self.0.push(departure.cell);
    }
}

/// Carries circuits and cells between this shard and shard `other` until that one ends.
pub(crate) async fn carry(overlay: &Exiting, other: usize, between: Between, crossing: Crossing) {
    let Crossing { to, from } = crossing;
    tokio::join!(send(overlay, other, between, to), receive(overlay, other, between, from));
}

async fn send(overlay: &Exiting, other: usize, between: Between, to: mpsc::Sender<Crossed>) {
    let signals = between.map(|channel| overlay.attach(channel));
    loop {
        let crossed = overlay.with(|node, now| {
            let handed = std::iter::from_fn(|| node.next_handed_over(other)).collect();
            let cells = between.map(|channel| {
                let mut cells = Vec::new();
                node.drain(now, channel, &mut Cells(&mut cells));
                cells
            });
            Crossed { handed, cells }
        });
        if crossed.handed.is_empty() && crossed.cells.iter().all(Vec::is_empty) {
            tokio::select! {
                () = signals[0].wait() => {}
                () = signals[1].wait() => {}
            }
        } else if to.send(crossed).await.is_err() {
            return;
        }
    }
}

async fn receive(overlay: &Exiting, other: usize, between: Between, mut from: mpsc::Receiver<Crossed>) {
    while let Some(Crossed { handed, cells }) = from.recv().await {
        overlay.with(|node, now| {
            for handed in handed {
                node.take_over(now, other, handed);
            }
            for (channel, cells) in between.into_iter().zip(cells) {
                node.cells_arrived(now, channel, &mut cells.into_iter().map(|cell| (cell, 1)));
            }
        });
        // As after a block of a connection: let writers forward these cells first.
        link::others_first().await;
    }
}
