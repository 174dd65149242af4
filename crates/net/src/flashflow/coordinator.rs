//! Drives one measurement on sockets: connections to the relay and its measurers.

use std::future::pending;
use std::net::SocketAddr;

use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::coordinator::{
    Failure, Measurement, Order, Outcome, Output, Peer, SecondRecord,
};
use tidegate_proto::flashflow::message::Message;
use tokio::sync::{mpsc, watch};

use crate::identity::{Contact, Identity};
use crate::{clock, link, tls};

enum Event {
    Connected(Peer),
    Said(Peer, Message),
    Garbage(Peer),
    Lost(Peer),
}

/// Makes one measurement.
///
/// `seconds` is called with each complete second. The measurement ends when `stop` turns true.
pub async fn measure(
    identity: &Identity,
    relay: Contact,
    measurers: &[Contact],
    order: Order,
    mut stop: watch::Receiver<bool>,
    mut seconds: impl FnMut(u16, &SecondRecord),
) -> Result<Outcome, Failure> {
    let (events, mut inbox) = mpsc::channel(64);
    let limit = order.timeouts.connect;
    let contacts = std::iter::once((Peer::Relay, relay))
        .chain(measurers.iter().enumerate().map(|(i, contact)| (Peer::Measurer(i), *contact)));
    let mut tasks = tokio::task::JoinSet::new();
    let mut outboxes = std::collections::BTreeMap::new();
    let mut measurement = Measurement::new(clock::now(), order);
    for (peer, contact) in contacts {
        match tls::client(Some(identity), contact.fingerprint) {
            Ok(config) => {
                let (outbox, messages) = mpsc::channel(16);
                outboxes.insert(peer, outbox);
                tasks.spawn(converse(peer, contact.address, config, limit, events.clone(), messages));
            }
            Err(_) => measurement.lost(peer),
        }
    }
    let result = loop {
        let mut result = None;
        while let Some(output) = measurement.poll() {
            match output {
                Output::Send(peer, message) => {
                    // A full or closed outbox belongs to a peer that is gone, or will be dropped by its
                    // timeout.
                    if let Some(outbox) = outboxes.get(&peer) {
                        let _ = outbox.try_send(message);
                    }
                }
                Output::Second(number, record) => seconds(number, &record),
                Output::Done(outcome) => result = Some(outcome),
            }
        }
        if let Some(result) = result {
            break result;
        }
        let stopped = async {
            if stop.wait_for(|stop| *stop).await.is_err() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            event = inbox.recv() => match event.expect("we hold a sender") {
                Event::Connected(peer) => measurement.connected(clock::now(), peer),
                Event::Said(peer, message) => measurement.message(clock::now(), peer, message),
                Event::Garbage(peer) => measurement.garbage(peer),
                Event::Lost(peer) => measurement.lost(peer),
            },
            () = clock::until(measurement.next_timeout().unwrap_or(Time::NEVER)) => {
                measurement.timeout(clock::now());
            }
            () = stopped => measurement.stop(),
        }
    };
    // The last messages (STOP, FAILED) leave before the connections close.
    outboxes.clear();
    drop(inbox);
    let farewell = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = farewell => {}
        () = clock::until(clock::now() + Span::from_secs(2)) => {}
    }
    result
}

/// Runs one connection: turns its messages into events until either side closes it.
async fn converse(
    peer: Peer,
    address: SocketAddr,
    config: std::sync::Arc<rustls::ClientConfig>,
    limit: Span,
    events: mpsc::Sender<Event>,
    mut messages: mpsc::Receiver<Message>,
) {
    let Ok(stream) = link::connect(address, config, limit).await else {
        let _ = events.send(Event::Lost(peer)).await;
        return;
    };
    if events.send(Event::Connected(peer)).await.is_err() {
        return;
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reading = async {
        loop {
            let event = match link::read_cell(&mut reader).await {
                Ok(cell) => {
                    Message::from_cell(&cell).map_or(Event::Garbage(peer), |said| Event::Said(peer, said))
                }
                Err(_) => Event::Lost(peer),
            };
            let last = !matches!(event, Event::Said(..));
            if events.send(event).await.is_err() || last {
                // Stay, so that the writer can still send what is queued.
                pending::<()>().await;
            }
        }
    };
    let writing = async {
        while let Some(message) = messages.recv().await {
            let Ok(cell) = message.to_cell() else { return };
            if link::write_cells(&mut writer, &cell).await.is_err() {
                return;
            }
        }
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut writer).await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}
