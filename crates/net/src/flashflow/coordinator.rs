//! Drives one measurement on sockets: connections to the relay and its measurers.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;

use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::coordinator::{
    Failure, Measurement, Order, Outcome, Output, Peer, SecondRecord,
};
use tidegate_proto::flashflow::{Message, Reason};
use tokio::sync::{mpsc, watch};

use crate::driver::{Driver, Handler};
use crate::identity::{Contact, Identity};
use crate::{clock, link, tls};

enum Event {
    Connected(Peer),
    Said(Peer, Message),
    Garbage(Peer),
    /// The connection broke or could not be opened, and why.
    Lost(Peer, String),
}

/// A failed measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmeasured {
    /// Its reason, and the peer that caused it.
    pub failure: Failure,
    /// Why that peer was not reached, if that is known.
    pub cause: Option<String>,
}

impl From<Failure> for Unmeasured {
    fn from(failure: Failure) -> Unmeasured {
        Unmeasured { failure, cause: None }
    }
}

/// Why a peer could not be connected to.
fn why_not_connected(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        // TLS passes on what the verifier of certificates says as text.
        _ if error.to_string().contains(tls::OTHER_FINGERPRINT) => format!(
            "{address} has another fingerprint; set `fingerprint` to what `tidegate flashflow keygen` printed for that role"
        ),
        io::ErrorKind::ConnectionRefused => {
            format!("nothing listens at {address}; check `address`, and whether that role runs")
        }
        io::ErrorKind::TimedOut => no_answer(address),
        _ => format!("cannot connect to {address}: {error}"),
    }
}

fn no_answer(address: SocketAddr) -> String {
    format!("no answer from {address}; check `address`, and whether a firewall blocks it")
}

/// Why a peer's connection ended.
fn why_lost(peer: Peer, address: SocketAddr, has_spoken: bool) -> String {
    match peer {
        Peer::Measurer(_) if !has_spoken => format!(
            "{address} closed the connection without an answer; check that its `coordinators` have this coordinator's \
             fingerprint"
        ),
        _ => format!("{address} closed the connection"),
    }
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
) -> Result<Outcome, Unmeasured> {
    let (events, mut inbox) = mpsc::channel(64);
    let limit = order.timeouts.connect;
    let contacts = std::iter::once((Peer::Relay, relay))
        .chain(measurers.iter().enumerate().map(|(i, contact)| (Peer::Measurer(i), *contact)));
    let mut tasks = tokio::task::JoinSet::new();
    let mut outboxes = BTreeMap::new();
    let mut measurement = Measurement::new(clock::now(), order);
    // Until a peer is connected, it has not answered.
    let mut causes = BTreeMap::new();
    for (peer, contact) in contacts {
        match tls::client(Some(identity), contact.fingerprint) {
            Ok(config) => {
                causes.insert(peer, no_answer(contact.address));
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
            Some(Some(Event::Connected(peer))) => {
                causes.remove(&peer);
                measurement.connected(clock::now(), peer);
            }
            Some(Some(Event::Said(peer, message))) => measurement.message(clock::now(), peer, message),
            Some(Some(Event::Garbage(peer))) => measurement.garbage(peer),
            Some(Some(Event::Lost(peer, cause))) => {
                causes.insert(peer, cause);
                measurement.lost(peer);
            }
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
    result.map_err(|failure| {
        let is_of_connection = matches!(failure.reason, Reason::Lost | Reason::Timeout);
        let peer = failure.by.filter(|_| is_of_connection);
        Unmeasured { failure, cause: peer.and_then(|peer| causes.remove(&peer)) }
    })
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
    let stream = match link::connect(address, config, limit).await {
        Ok(stream) => stream,
        Err(error) => {
            let _ = events.send(Event::Lost(peer, why_not_connected(address, &error))).await;
            return;
        }
    };
    if events.send(Event::Connected(peer)).await.is_err() {
        return;
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reading = async {
        let mut has_spoken = false;
        loop {
            let event = match link::read_cell(&mut reader).await {
                Ok(cell) => {
                    Message::from_cell(&cell).map_or(Event::Garbage(peer), |said| Event::Said(peer, said))
                }
                Err(_) => Event::Lost(peer, why_lost(peer, address, has_spoken)),
            };
            has_spoken = true;
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
