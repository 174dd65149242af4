//! Peers on one thread with blocking reads: relays, senders and receivers of one stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::units::{Span, Time};
use tidegate_more::download::Download;
use tidegate_more::machine::Output;
use tidegate_more::onion::{MAX_RELAYS, Opened};
use tidegate_more::upload::{CHUNK, Overlay, Upload};
use tidegate_more::wire::WIRE_SIZE;

use super::peer::{Handled, LivePeer, PeerConfig, Summary, entropy, invalid, number, randomness};
use crate::clock;
use crate::driver::{Driver, Handler};

/// A peer's task besides forwarding.
pub enum Role<'a> {
    /// None.
    Relay,
    /// Sends the content to a peer.
    Send {
        /// The destination.
        to: Peer,
        /// The content, read to its end.
        content: &'a mut dyn Read,
    },
    /// Receives the first stream that arrives.
    Receive {
        /// Where the content goes.
        content: &'a mut dyn Write,
    },
}

/// How long a receiver stays after the last packet of a complete stream. It must repeat lost acknowledgements, and
/// the first timeouts of an unmeasured path are long.
const LINGER: Span = Span::from_secs(8);
/// How long a sender waits for an acknowledgement.
const NO_ANSWER: Span = Span::from_secs(60);
/// Maximum sleep: how soon a stop is noticed.
const NAP: Span = Span::from_millis(50);

/// Runs a peer until its role is complete or `stop` is set.
///
/// # Errors
/// Errors of the socket or the content, [`ErrorKind::TimedOut`] without acknowledgements, and
/// [`ErrorKind::InvalidInput`] for an invalid configuration.
pub fn run(settings: &PeerConfig, role: Role, stop: &AtomicBool) -> io::Result<Summary> {
    let (peer, socket) = LivePeer::open(settings)?;
    // One byte more than the longest datagram, to detect longer ones.
    let buffer = vec![0; WIRE_SIZE + 1];
    let mut wire = BlockingWire { peer, socket, buffer, wait: Span::ZERO };
    match role {
        Role::Relay => wire.relay(stop)?,
        Role::Send { to, content } => wire.send(settings, to, content, stop)?,
        Role::Receive { content } => wire.receive(content, stop)?,
    }
    Ok(wire.peer.summary())
}

/// A peer and its socket, read by this thread alone.
struct BlockingWire {
    peer: LivePeer,
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// The socket's read timeout.
    wait: Span,
}

impl Handler<Upload> for BlockingWire {
    fn handle(&mut self, _: &mut Upload, _: Time, output: Output) {
        match output {
            Output::Send(first, datagram) => self.send_to(first, &datagram),
            Output::Stream(_) | Output::Publish | Output::Closed(_) => unreachable!("uploads only send"),
        }
    }
}

impl BlockingWire {
    /// Waits for a datagram until `until`, and opens it. Forwards relayed datagrams.
    fn next(&mut self, until: Time) -> io::Result<Option<Opened>> {
        let wait = until.since(clock::now()).min(NAP).max(Span::from_micros(50));
        if wait != self.wait {
            self.socket.set_read_timeout(Some(Duration::from_nanos(wait.0)))?;
            self.wait = wait;
        }
        let length = match self.socket.recv_from(&mut self.buffer) {
            Ok((length, _)) => length,
            // ICMP reports that an earlier datagram was refused: that peer is not up yet.
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock
                | ErrorKind::TimedOut
                | ErrorKind::Interrupted
                | ErrorKind::ConnectionRefused => return Ok(None),
                _ => return Err(error),
            },
        };
        match self.peer.handle(clock::now(), &self.buffer[..length])? {
            Handled::Forward(to, datagram) => {
                self.hand_over(to, &datagram);
                Ok(None)
            }
            Handled::Here(opened) => Ok(Some(opened)),
            Handled::Nothing => Ok(None),
        }
    }

    fn hand_over(&mut self, to: Option<SocketAddr>, datagram: &[u8]) {
        if to.is_none_or(|to| self.socket.send_to(datagram, to).is_err()) {
            self.peer.summary.unsent += 1;
        }
    }

    fn send_to(&mut self, to: Peer, datagram: &[u8]) {
        let (to, datagram) = self.peer.seal(to, datagram);
        self.hand_over(to, &datagram);
    }

    fn relay(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.next(Time::NEVER)?;
            self.peer.turn(clock::now())?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        settings: &PeerConfig,
        to: Peer,
        content: &mut dyn Read,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let (peers, me) = (settings.directory.peers.len(), settings.me);
        if usize::from(to) >= peers || to == me {
            return Err(invalid(format!("peer {to} is not another peer of the directory")));
        }
        if !(1..=MAX_RELAYS.min(MAX_HOPS)).contains(&settings.hops) || settings.hops + 2 > peers {
            return Err(invalid(format!(
                "{} hops among {peers} peers: give 1 to {MAX_RELAYS} hops and at least two peers more",
                settings.hops
            )));
        }
        if !settings.guards.is_empty() && settings.guards.iter().all(|guard| *guard == to) {
            return Err(invalid(format!(
                "the only guard is the destination, peer {to}; ask for two guards or more"
            )));
        }
        let sender = settings.sender(peers, settings.hops)?;
        let epoch = self.peer.keys();
        let overlay = Overlay { me, to, hops: settings.hops, attempt_every: settings.attempt_every, epoch };
        let start = clock::now();
        let mut driver = Driver::new(Upload::new(number(), overlay, sender, randomness(), start));
        let mut block = vec![0; 64 * CHUNK];
        let mut ended = false;
        let mut heard = start;
        while !driver.machine.done() && !stop.load(Ordering::Relaxed) {
            // Read ahead only as far as the machine has room, so that a long content stays out of memory.
            while !ended && driver.machine.room() >= block.len() {
                let read = read_full(content, &mut block)?;
                self.peer.summary.bytes += read as u64;
                driver.machine.write(&block[..read]);
                if read < block.len() {
                    driver.machine.end();
                    ended = true;
                }
            }
            driver.catch_up(self, clock::now());
            if let Some(epoch) = self.peer.turn(clock::now())? {
                driver.machine.set_epoch(epoch);
            }
            if let Some(Opened::Ack { id, annex, .. }) = self.next(driver.due())? {
                heard = clock::now();
                driver.machine.acked(heard, id, annex);
            }
            if clock::now().since(heard) > NO_ANSWER {
                let cause = format!(
                    "peer {to} has not acknowledged anything for {NO_ANSWER}; check that it runs and is reachable"
                );
                return Err(io::Error::new(ErrorKind::TimedOut, cause));
            }
        }
        self.peer.summary.seconds = clock::now().since(start).as_secs_f64();
        self.peer.summary.upload = driver.machine.progress();
        self.peer.summary.stopped = !driver.machine.done();
        Ok(())
    }

    fn receive(&mut self, content: &mut dyn Write, stop: &AtomicBool) -> io::Result<()> {
        let mut download = Download::default();
        let mut wanted = None;
        let mut first = None;
        let mut leave = Time::NEVER;
        while !stop.load(Ordering::Relaxed) && clock::now() < leave {
            self.peer.turn(clock::now())?;
            let Some(Opened::Data { body, reply }) = self.next(leave)? else { continue };
            let now = clock::now();
            // An invalid chunk is not acknowledged.
            let Some(arrived) = download.body(&body) else { continue };
            if *wanted.get_or_insert(arrived.stream) == arrived.stream {
                content.write_all(&arrived.bytes)?;
                self.peer.summary.bytes += arrived.bytes.len() as u64;
                let begin = *first.get_or_insert(now);
                if leave == Time::NEVER {
                    self.peer.summary.seconds = now.since(begin).as_secs_f64();
                }
                if arrived.complete {
                    content.flush()?;
                }
                if arrived.complete || leave != Time::NEVER {
                    leave = now + LINGER;
                }
            }
            if let Some((to, ack)) = reply.acknowledge(&[], &mut entropy) {
                self.send_to(to, &ack);
            }
        }
        self.peer.summary.download = download.counters;
        self.peer.summary.stopped = leave == Time::NEVER;
        Ok(())
    }
}

/// Reads until the block is full or the content ends.
fn read_full(content: &mut dyn Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match content.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
