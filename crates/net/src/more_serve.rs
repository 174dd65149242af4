//! Hidden services: streams that come over receiver paths lead to local TCP servers.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::descriptor::{Descriptor, MAX_PATHS};
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::service::{Answered, Service};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::clock;
use crate::more_local::{Local, NAP, Pump, StreamKey, Wire, Woken, check_hops, number, runtime, woken};
use crate::more_peer::{Settings, Summary, entropy};

/// How often descriptors are looked at, and streams that are over forgotten.
const SWEEP: Span = Span::from_secs(2);

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
        let (me, guards) = (settings.me, settings.guards.clone());
        let service = Service::new(me, epoch.1, settings.hops, guards, serving.key);
        let name = tidegate_more::directory::authority_key(&serving.name);
        let descriptor = Descriptor { name, epoch: epoch.0, key: service.key(), paths: Vec::new() };
        Hosted { service, serving, descriptor }
    }

    /// Publishes again when a quarter of the paths was used or is old.
    fn publish(&mut self, now: Time, random: &mut Random) -> io::Result<()> {
        let most = self.serving.paths.clamp(1, MAX_PATHS);
        let left = self.service.published(now).count();
        if left < most - most / 4 {
            self.service.publish(now, most - left, random, &mut entropy);
            self.descriptor.paths = self.service.published(now).cloned().collect();
            (self.serving.publish)(&self.descriptor)?;
        }
        Ok(())
    }
}

/// The services of one peer and their local connections.
struct Services<'a> {
    hosted: Vec<Hosted<'a>>,
    pumps: BTreeMap<StreamKey, Pump>,
    events: mpsc::Sender<Local>,
    random: Random,
}

async fn serve_all(settings: &Settings, serving: Vec<Serving<'_>>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let epoch = || (wire.peer.epoch(), wire.peer.keys());
    let hosted = serving.into_iter().map(|serving| Hosted::new(settings, epoch(), serving)).collect();
    let (events, mut local) = mpsc::channel(256);
    let random = Seed::root(number()).random();
    let mut services = Services { hosted, pumps: BTreeMap::new(), events, random };
    let mut heard = Vec::new();
    let mut sweep = Time::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if let Some(keys) = wire.peer.turn(now)? {
            for hosted in &mut services.hosted {
                hosted.service.set_epoch(keys.clone());
                hosted.descriptor.epoch = wire.peer.epoch();
            }
            sweep = now;
        }
        if now >= sweep {
            sweep = now + SWEEP;
            services.sweep(now)?;
        }
        let nobody = std::future::pending();
        let woken = woken(wire.socket.readable(), nobody, &mut local, &mut heard, now + NAP).await;
        if let Woken::Datagrams(ready) = woken {
            ready?;
        }
        heard.drain(..).for_each(|event| services.local(event));
        for opened in wire.receive()? {
            services.opened(&mut wire, opened);
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
    fn sweep(&mut self, now: Time) -> io::Result<()> {
        for (number, hosted) in self.hosted.iter_mut().enumerate() {
            hosted.publish(now, &mut self.random)?;
            for stream in hosted.service.sweep(now) {
                self.pumps.remove(&(number, stream));
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
    fn opened(&mut self, wire: &mut Wire, opened: Opened) {
        let (now, offer) = (clock::now(), wire.peer.node.stamp());
        let (Opened::Message { id, .. } | Opened::Cell { id, .. }) = &opened else { return };
        // What belongs to none is counted by the first.
        let number = self.hosted.iter().position(|hosted| hosted.service.knows(id)).unwrap_or(0);
        let Some(Hosted { service, serving, .. }) = self.hosted.get_mut(number) else { return };
        let random = &mut self.random;
        let answered = match opened {
            Opened::Message { id, payload, .. } => {
                service.message(now, id, &payload, offer, random, &mut entropy)
            }
            Opened::Cell { id, annex, payload } => {
                service.cell(now, id, (annex, &payload), offer, random, &mut entropy)
            }
            _ => None,
        };
        let Some(Answered { reply, stream, opened, bytes, complete }) = answered else { return };
        wire.send_to(reply.0, &reply.1);
        let key = (number, stream);
        if opened {
            let connect = TcpStream::connect(serving.target);
            self.pumps.insert(key, Pump::start(key, connect, self.events.clone()));
        }
        wire.peer.summary.bytes += bytes.len() as u64;
        if let Some(pump) = self.pumps.get(&key) {
            pump.write(bytes);
            if complete {
                pump.end();
            }
        }
    }

    /// Of all services together.
    fn counters(&self) -> tidegate_more::service::Counters {
        self.hosted.iter().fold(Default::default(), |sum, hosted| sum + hosted.service.counters)
    }
}
