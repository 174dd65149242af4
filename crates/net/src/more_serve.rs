//! Hidden services: streams that come over receiver paths lead to local TCP servers.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_more::descriptor::{Descriptor, MAX_PATHS};
use tidegate_more::machine::{Output, StreamEvent};
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::service::{self, Service};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::clock;
use crate::more_local::{Local, NAP, Pump, StreamKey, Wire, Woken, check_hops, runtime, woken};
use crate::more_peer::{Settings, Summary, randomness};

/// Publishes a descriptor.
pub type Publish<'a> = Box<dyn FnMut(&Descriptor) -> io::Result<()> + 'a>;

/// One service: who it is, and where it leads.
pub struct Serving<'a> {
    /// Secret of the receiver's name, which signs its descriptors.
    pub name: [u8; 32],
    /// Secret of the key that messages are encrypted to.
    pub key: [u8; 32],
    /// How many receiver paths are kept published.
    pub paths: usize,
    /// Where streams lead.
    pub target: SocketAddr,
    /// Publishes a descriptor.
    pub publish: Publish<'a>,
}

/// Serves streams that come over receiver paths until `stop` is set.
///
/// # Errors
/// [`io::Error`] of the socket or of publishing, [`io::ErrorKind::InvalidInput`] for settings that cannot work.
pub fn serve(settings: &Settings, serving: Vec<Serving>, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 0)?;
    runtime()?.block_on(serve_all(settings, serving, stop))
}

/// A service and what it publishes.
struct Hosted<'a> {
    service: Service,
    serving: Serving<'a>,
    descriptor: Descriptor,
}

impl<'a> Hosted<'a> {
    fn new(settings: &Settings, epoch: (u32, Epoch), serving: Serving<'a>) -> Hosted<'a> {
        let known = service::ServiceConfig {
            me: settings.me,
            epoch: epoch.1,
            hops: settings.hops,
            guards: settings.guards.clone(),
            secret: serving.key,
            publish: serving.paths.clamp(1, MAX_PATHS),
        };
        let service = Service::new(known, randomness());
        let name = tidegate_more::directory::authority_key(&serving.name);
        let descriptor = Descriptor { name, epoch: epoch.0, key: service.key(), paths: Vec::new() };
        Hosted { service, serving, descriptor }
    }

    fn publish(&mut self, now: Time) -> io::Result<()> {
        self.descriptor.paths = self.service.published(now).cloned().collect();
        (self.serving.publish)(&self.descriptor)
    }
}

/// The services of one peer and their local connections.
struct Services<'a> {
    hosted: Vec<Hosted<'a>>,
    pumps: BTreeMap<StreamKey, Pump>,
    events: mpsc::Sender<Local>,
}

async fn serve_all(settings: &Settings, serving: Vec<Serving<'_>>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let epoch = || (wire.peer.epoch(), wire.peer.keys());
    let hosted = serving.into_iter().map(|serving| Hosted::new(settings, epoch(), serving)).collect();
    let (events, mut local) = mpsc::channel(256);
    let mut services = Services { hosted, pumps: BTreeMap::new(), events };
    let mut heard = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if let Some(keys) = wire.peer.turn(now)? {
            for hosted in &mut services.hosted {
                hosted.service.set_epoch(keys.clone());
                hosted.descriptor.epoch = wire.peer.epoch();
            }
        }
        services.turn(now, &mut wire)?;
        let nobody = std::future::pending();
        let woken = woken(wire.ready(), nobody, &mut local, &mut heard, now + NAP).await;
        if let Woken::Datagrams(ready) = woken {
            ready?;
        }
        heard.drain(..).for_each(|event| services.local(event));
        for opened in wire.receive()? {
            services.opened(&mut wire, opened)?;
        }
        for ((service, stream), pump) in &mut services.pumps {
            let service = &mut services.hosted[*service].service;
            service.set_takes(*stream, pump.takes());
            pump.grant(service.room(*stream));
        }
    }
    let mut summary = wire.peer.summary();
    summary.service = services.counters();
    Ok(summary)
}

impl Services<'_> {
    /// Time has come to `now`.
    fn turn(&mut self, now: Time, wire: &mut Wire) -> io::Result<()> {
        for number in 0..self.hosted.len() {
            self.hosted[number].service.catch_up(now);
            self.drain(now, number, wire)?;
        }
        Ok(())
    }

    /// Does what a service asks.
    fn drain(&mut self, now: Time, number: usize, wire: &mut Wire) -> io::Result<()> {
        while let Some(output) = self.hosted[number].service.poll() {
            match output {
                Output::Send(to, datagram) => wire.send_to(to, &datagram),
                Output::Stream(came) => self.came(number, came, wire),
                Output::Publish => self.hosted[number].publish(now)?,
                Output::Closed(stream) => {
                    self.pumps.remove(&(number, stream));
                }
            }
        }
        Ok(())
    }

    fn local(&mut self, event: Local) {
        match event {
            Local::Bytes(key, bytes) => {
                self.hosted[key.0].service.write(key.1, &bytes);
                self.pumps.entry(key).and_modify(|pump| pump.granted = false);
            }
            Local::End(key) => self.hosted[key.0].service.end(key.1),
            Local::Unreachable(key) => {
                self.hosted[key.0].service.refuse(key.1);
                self.pumps.remove(&key);
            }
            Local::Wants(..) => {}
        }
    }

    /// Something came over a path of one of the services.
    fn opened(&mut self, wire: &mut Wire, opened: Opened) -> io::Result<()> {
        let (now, offer) = (clock::now(), wire.peer.node.stamp());
        let (Opened::Message { id, .. } | Opened::Cell { id, .. }) = &opened else { return Ok(()) };
        // What belongs to none is counted by the first.
        let number = self.hosted.iter().position(|hosted| hosted.service.knows(id)).unwrap_or(0);
        let Some(Hosted { service, .. }) = self.hosted.get_mut(number) else { return Ok(()) };
        match opened {
            Opened::Message { id, payload, .. } => service.message(now, id, &payload, offer),
            Opened::Cell { id, annex, payload } => service.cell(now, id, (annex, &payload), offer),
            _ => {}
        }
        self.drain(now, number, wire)
    }

    /// Something came on a stream of a service.
    fn came(&mut self, number: usize, came: StreamEvent, wire: &mut Wire) {
        let key = (number, came.stream);
        if came.opened {
            let connect = TcpStream::connect(self.hosted[number].serving.target);
            self.pumps.insert(key, Pump::start(key, connect, self.events.clone()));
        }
        wire.peer.summary.bytes += came.bytes.len() as u64;
        if let Some(pump) = self.pumps.get(&key) {
            pump.write(came.bytes);
            if came.complete {
                pump.end();
            }
        }
    }

    /// Of all services together.
    fn counters(&self) -> service::Counters {
        self.hosted.iter().fold(Default::default(), |sum, hosted| sum + hosted.service.counters)
    }
}
