//! Hidden services: forwards streams from receiver paths to local TCP servers.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::units::Time;
use tidegate_more::descriptor::Descriptor;
use tidegate_more::machine::{Output, StreamEvent};
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::service::{self, Service};
use tokio::sync::mpsc;

use super::local::{Local, NAP, Pump, StreamKey, Wire, Woken, check_hops, runtime, woken};
use super::peer::{PeerConfig, Summary, randomness};
use crate::clock;
use crate::driver::{Driver, Handler};
use crate::gate::Gate;
use crate::sockets;

/// Publishes a descriptor.
pub type Publish<'a> = Box<dyn FnMut(&Descriptor) -> io::Result<()> + 'a>;

/// A service: its secrets and its target.
pub struct Serving<'a> {
    /// The secret of the receiver's name, which signs its descriptors.
    pub name: [u8; 32],
    /// The secret of the key that messages are encrypted to.
    pub key: [u8; 32],
    /// How many receiver paths are published.
    pub paths: usize,
    /// The local server.
    pub target: SocketAddr,
    /// Publishes a descriptor.
    pub publish: Publish<'a>,
}

/// Forwards streams from receiver paths to local servers until `stop` is set.
///
/// # Errors
/// Errors of the socket or of publishing, and [`io::ErrorKind::InvalidInput`] for an invalid configuration.
pub fn serve(settings: &PeerConfig, serving: Vec<Serving>, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 0)?;
    runtime()?.block_on(serve_all(settings, serving, stop))
}

/// A service and its current descriptor.
struct Hosted<'a> {
    driver: Driver<Service>,
    serving: Serving<'a>,
    descriptor: Descriptor,
}

impl<'a> Hosted<'a> {
    fn new(settings: &PeerConfig, epoch: (u32, Epoch), serving: Serving<'a>) -> Hosted<'a> {
        let known = service::ServiceConfig {
            me: settings.me,
            epoch: epoch.1,
            hops: settings.hops,
            guards: settings.guards.clone(),
            secret: serving.key,
            publish: serving.paths,
        };
        let service = Service::new(known, randomness());
        let name = tidegate_more::directory::authority_key(&serving.name);
        let descriptor = Descriptor { name, epoch: epoch.0, key: service.key(), paths: Vec::new() };
        Hosted { driver: Driver::new(service), serving, descriptor }
    }
}

/// The services of one peer and their local connections.
struct Services<'a> {
    hosted: Vec<Hosted<'a>>,
    pumps: BTreeMap<StreamKey, Pump>,
    events: mpsc::Sender<Local>,
}

async fn serve_all(
    settings: &PeerConfig,
    serving: Vec<Serving<'_>>,
    stop: &AtomicBool,
) -> io::Result<Summary> {
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
                hosted.driver.machine.set_epoch(keys.clone());
                hosted.descriptor.epoch = wire.peer.epoch();
            }
        }
        services.catch_up(now, &mut wire)?;
        // A service has no local listener: it connects to its targets.
        let no_listener = std::future::pending();
        let woken = woken(wire.ready(), no_listener, &mut local, &mut heard, now + NAP).await;
        if let Woken::Datagrams(ready) = woken {
            ready?;
        }
        heard.drain(..).for_each(|event| services.local(event));
        for opened in wire.receive()? {
            services.opened(&mut wire, opened)?;
        }
        for ((service, stream), pump) in &mut services.pumps {
            let service = &mut services.hosted[*service].driver.machine;
            service.set_takes(*stream, pump.takes());
            pump.grant(service.room(*stream));
        }
    }
    let mut summary = wire.peer.summary();
    summary.service = services.counters();
    Ok(summary)
}

/// Carries out the outputs of one service.
struct Outputs<'a, 'b> {
    number: usize,
    serving: &'a mut Serving<'b>,
    descriptor: &'a mut Descriptor,
    wire: &'a mut Wire,
    pumps: &'a mut BTreeMap<StreamKey, Pump>,
    events: &'a mpsc::Sender<Local>,
    /// The first failure to publish; it ends the peer.
    published: io::Result<()>,
}

impl Handler<Service> for Outputs<'_, '_> {
    fn handle(&mut self, service: &mut Service, now: Time, output: Output) {
        match output {
            Output::Send(to, datagram) => self.wire.send_to(to, &datagram),
            Output::Stream(came) => self.came(came),
            Output::Publish if self.published.is_ok() => {
                self.descriptor.paths = service.published(now).cloned().collect();
                self.published = (self.serving.publish)(self.descriptor);
            }
            Output::Publish => {}
            Output::Closed(stream) => {
                self.pumps.remove(&(self.number, stream));
            }
        }
    }
}

impl Outputs<'_, '_> {
    /// Passes stream data to the local server, and connects for a new stream.
    fn came(&mut self, came: StreamEvent) {
        let key = (self.number, came.stream);
        if came.opened {
            let connect = sockets::connect(Gate::Private, self.serving.target, None);
            self.pumps.insert(key, Pump::start(key, connect, self.events.clone()));
        }
        self.wire.peer.summary.bytes += came.bytes.len() as u64;
        if let Some(pump) = self.pumps.get(&key) {
            pump.write(came.bytes);
            if came.complete {
                pump.end();
            }
        }
    }
}

impl Services<'_> {
    /// Runs the timeouts of all services.
    fn catch_up(&mut self, now: Time, wire: &mut Wire) -> io::Result<()> {
        for number in 0..self.hosted.len() {
            self.drive(number, wire, |driver, outputs| driver.catch_up(outputs, now))?;
        }
        Ok(())
    }

    fn drive(
        &mut self,
        number: usize,
        wire: &mut Wire,
        act: impl FnOnce(&mut Driver<Service>, &mut Outputs),
    ) -> io::Result<()> {
        let Hosted { driver, serving, descriptor } = &mut self.hosted[number];
        let (pumps, events) = (&mut self.pumps, &self.events);
        let mut outputs = Outputs { number, serving, descriptor, wire, pumps, events, published: Ok(()) };
        act(driver, &mut outputs);
        outputs.published
    }

    fn local(&mut self, event: Local) {
        match event {
            Local::Bytes(key, bytes) => {
                self.hosted[key.0].driver.machine.write(key.1, &bytes);
                self.pumps.entry(key).and_modify(|pump| pump.granted = false);
            }
            Local::End(key) => self.hosted[key.0].driver.machine.end(key.1),
            Local::Unreachable(key) => {
                self.hosted[key.0].driver.machine.refuse(key.1);
                self.pumps.remove(&key);
            }
            Local::Wants(..) => {}
        }
    }

    /// Passes an opened packet to the service that it belongs to.
    fn opened(&mut self, wire: &mut Wire, opened: Opened) -> io::Result<()> {
        let offer = wire.peer.node.stamp();
        let (Opened::Message { id, .. } | Opened::Cell { id, .. }) = &opened else { return Ok(()) };
        // The first service counts packets that belong to none.
        let number = self.hosted.iter().position(|hosted| hosted.driver.machine.knows(id)).unwrap_or(0);
        if self.hosted.is_empty() {
            return Ok(());
        }
        self.drive(number, wire, |driver, outputs| {
            driver.input(outputs, |service, now| match opened {
                Opened::Message { id, payload, .. } => service.message(now, id, &payload, offer),
                Opened::Cell { id, annex, payload } => service.cell(now, id, (annex, &payload), offer),
                _ => unreachable!("the packet is a message or a cell"),
            });
        })
    }

    /// Counters summed over all services.
    fn counters(&self) -> service::Counters {
        self.hosted.iter().fold(Default::default(), |sum, hosted| sum + hosted.driver.machine.counters)
    }
}
