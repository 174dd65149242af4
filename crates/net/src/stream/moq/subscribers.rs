//! A viewer's edge: subscribers read the stream as it is played.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use moq_net::{Server, Timestamp, group, origin, track};
use quinn::{Connection, Incoming};
use tidegate_control::units::{Span, Time};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::edge::{BROADCAST, Edge, Lifetimes, Renewal, TRACK};
use super::endpoint::{self, HANDSHAKE};
use crate::admission::Admission;
use crate::clock;
use crate::stream::hls::Part;
use crate::stream::viewer::Screen;

/// Subscribers at a time.
const SUBSCRIBERS: usize = 16;
/// Bytes that a subscriber may send ahead of what is read.
const WINDOW: u32 = 1 << 16;
/// Bytes that a subscriber may send in all, besides a quarter of what it gets.
///
/// A request of up to 64 MiB is gathered in memory before it is read.
const REQUESTS: u64 = 1 << 20;
/// How often this is checked.
const CHECK: Span = Span::from_millis(100);
/// Frames of a group that hold what is played at a time. Later ones hold more, since a group has at most 8192 frames.
const SMALL: usize = 4096;
const LARGE: usize = 16 << 10;

/// Serves the stream of a viewer to subscribers at this address, within the current `LocalSet`. `say` hears of renewals of
/// the certificate.
///
/// # Errors
/// If the address cannot be bound.
pub fn serve(
    listen: SocketAddr,
    screen: &Arc<Screen>,
    lifetimes: Lifetimes,
    say: impl Fn(Renewal) + 'static,
) -> io::Result<Edge> {
    let opened = endpoint::open(listen, WINDOW, lifetimes)?;
    let (endpoint, edge) = (opened.endpoint.clone(), opened.edge);
    *lock(&screen.edge) = Some((edge.address, vec![edge.certificate]));
    let shown = screen.clone();
    spawn_local(opened.renew(move |renewal| {
        if let Some((_, certificates)) = &mut *lock(&shown.edge) {
            renew(certificates, renewal);
        }
        say(renewal);
    }));
    let (origin, driver) = endpoint::origin();
    spawn_local(moq_net::time::run(driver));
    let mut stream = Stream::new(&origin).map_err(io::Error::other)?;
    lock(&screen.hls).follow();
    let follower = Box::new(move |now, part| stream.push(now, part));
    *lock(&screen.follower) = Some(follower);
    spawn_local(async move {
        let admission = Rc::new(Admission::new(SUBSCRIBERS));
        while let Some(incoming) = endpoint.accept().await {
            let (admission, origin) = (admission.clone(), origin.clone());
            spawn_local(async move {
                let from = incoming.remote_address().ip();
                admission.run(from, subscriber(incoming, &origin)).await;
            });
        }
    });
    Ok(edge)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("the lock is not poisoned")
}

/// Renews the certificates that pages may meet: the one in use, and its successor.
fn renew(certificates: &mut Vec<[u8; 32]>, renewal: Renewal) {
    match renewal {
        Renewal::Announced { certificate, .. } => certificates.push(certificate),
        Renewal::Replaced { certificate } => *certificates = vec![certificate],
    }
}

/// Serves one subscriber until it leaves or sends too much.
async fn subscriber(incoming: Incoming, origin: &origin::Producer) {
    let agreed = async {
        let (connection, session) = endpoint::session(incoming).await.ok()?;
        let server = Server::new().with_publisher(origin);
        let (session, driver) = server.accept(clock::instant(), session).await.ok()?;
        Some((connection, session, driver))
    };
    let Ok(Some((connection, _session, driver))) = timeout(HANDSHAKE, agreed).await else { return };
    let _closed = Closed(connection.clone());
    tokio::select! {
        _ = moq_net::time::run(driver) => {}
        () = floods(&connection) => {}
    }
}

/// Closes a connection at the end of its task, whatever ended it.
struct Closed(Connection);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.close(0u32.into(), b"");
    }
}

/// Waits until a subscriber has sent too much.
async fn floods(connection: &Connection) {
    loop {
        let stats = connection.stats();
        if stats.udp_rx.bytes > REQUESTS + stats.udp_tx.bytes / 4 {
            return;
        }
        clock::until(clock::now() + CHECK).await;
    }
}

/// The stream as a track.
struct Stream {
    track: track::Producer,
    _broadcast: moq_net::broadcast::Producer,
    group: Option<Group>,
    began: Option<Time>,
}

/// A group that grows.
struct Group {
    group: group::Producer,
    frames: usize,
    waiting: BytesMut,
}

impl Stream {
    fn new(origin: &origin::Producer) -> Result<Stream, moq_net::Error> {
        let broadcast = origin.publish(BROADCAST, origin::Route::default())?;
        let track = broadcast.create_track(TRACK, track::Info::default())?;
        Ok(Stream { track, _broadcast: broadcast, group: None, began: None })
    }

    fn push(&mut self, now: Time, part: Part) {
        let time = now.since(*self.began.get_or_insert(now));
        let time = Timestamp::from_millis(time.0 / 1_000_000).expect("a run is shorter than 2^62 ms");
        match part {
            Part::Begin => {
                self.end(time);
                let group = self.track.append_group().ok();
                self.group = group.map(|group| Group { group, frames: 0, waiting: BytesMut::new() });
            }
            Part::Packets(bytes) => {
                // A segment beyond the limits of a group goes no further; the next one begins another group.
                if let Some(group) = &mut self.group
                    && group.push(time, bytes).is_err()
                {
                    self.group = None;
                }
            }
            Part::End => self.end(time),
        }
    }

    fn end(&mut self, time: Timestamp) {
        let Some(mut group) = self.group.take() else { return };
        // Fails for a group beyond the limits, which has been reset.
        let _ = group.flush(time).and_then(|()| group.group.finish());
    }
}

impl Group {
    fn push(&mut self, time: Timestamp, bytes: Bytes) -> Result<(), moq_net::Error> {
        if self.frames < SMALL {
            self.frames += 1;
            return self.group.write_frame(time, bytes);
        }
        self.waiting.extend_from_slice(&bytes);
        if self.waiting.len() < LARGE { Ok(()) } else { self.flush(time) }
    }

    fn flush(&mut self, time: Timestamp) -> Result<(), moq_net::Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.group.write_frame(time, self.waiting.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_certificate_in_use_and_the_next_one() {
        let mut certificates = vec![[1; 32]];
        renew(&mut certificates, Renewal::Announced { certificate: [2; 32], from: 0 });
        assert_eq!(certificates, [[1; 32], [2; 32]]);
        renew(&mut certificates, Renewal::Replaced { certificate: [2; 32] });
        assert_eq!(certificates, [[2; 32]]);
    }
}
