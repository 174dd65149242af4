//! Drives one measurement on sockets: connections to the relay and its measurers.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;

use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::coordinator::{
    Failure, Measurement, Order, Outcome, Output, Peer, SecondRecord,
};
use tidegate_proto::flashflow::message::Message;
use tokio::sync::{mpsc, watch};

use crate::driver::{Driver, Handler};
use crate::identity::{Contact, Identity};
use crate::{clock, link, tls};

enum Event {
    Connected(Peer),
    Said(Peer, Message),
    Garbage(Peer),
    Lost(Peer),
}

/// Carries out the outputs of a measurement.
struct Outputs<'a> {
    outboxes: BTreeMap<Peer, mpsc::Sender<Message>>,
    seconds: &'a mut dyn FnMut(u16, &SecondRecord),
    result: Option<Result<Outcome, Failure>>,
}

impl Handler<Measurement> for Outputs<'_> {
    fn handle(&mut self, _: &mut Measurement, _: Time, output: Output) {
        match output {
            Output::Send(peer, message) => {
                // A full or closed outbox belongs to a peer that is gone, or will be by its timeout.
                if let Some(outbox) = self.outboxes.get(&peer) {
                    let _ = outbox.try_send(message);
                }
            }
            Output::Second(number, record) => (self.seconds)(number, &record),
            Output::Done(outcome) => self.result = Some(outcome),
        }
    }
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
    let mut outboxes = BTreeMap::new();
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
    let mut driver = Driver::new(measurement);
    let mut outputs = Outputs { outboxes, seconds: &mut seconds, result: None };
    driver.drain(&mut outputs, clock::now());
    while outputs.result.is_none() {
        let event = async {
            let stopped = async {
                if stop.wait_for(|stop| *stop).await.is_err() {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                event = inbox.recv() => Some(event.expect("we hold a sender")),
                () = stopped => None,
            }
        };
        let event = driver.wait(Time::NEVER, event).await;
        let measurement = &mut driver.machine;
        match event {
            Some(Some(Event::Connected(peer))) => measurement.connected(clock::now(), peer),
            Some(Some(Event::Said(peer, message))) => measurement.message(clock::now(), peer, message),
            Some(Some(Event::Garbage(peer))) => measurement.garbage(peer),
            Some(Some(Event::Lost(peer))) => measurement.lost(peer),
            Some(None) => measurement.stop(),
            None => {}
        }
        driver.catch_up(&mut outputs, clock::now());
    }
    let Outputs { mut outboxes, result, .. } = outputs;
    let result = result.expect("the loop ends with a result");
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
