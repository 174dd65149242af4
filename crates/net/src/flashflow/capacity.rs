//! Measures a measurer's capacity: all other measurers exchange UDP with it at the same time.
//!
//! Section 6.1 and appendix B use iPerf for this. Datagrams and keys are those of
//! [`tidegate_proto::flashflow::probe`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::bucket::{BucketPlan, TokenBucket};
pub use tidegate_proto::flashflow::probe::MAX_SECONDS;
use tidegate_proto::flashflow::probe::{DATAGRAM, HEAD, Head, Key, Nonce, ProbeKind, Sender, beginning};
use tokio::net::UdpSocket;

use super::config::CapacityPeer;
use crate::clock;
use crate::identity::{Identity, random};

/// Interval and maximum number of start datagrams.
const AGAIN: Span = Span::from_millis(250);
const TRIES: usize = 20;
/// A session ends when its peer has been silent this long.
const SILENCE: Span = Span::from_secs(3);
/// How late the last reports may be.
const LATE: Span = Span::from_secs(2);
/// Number of past seconds in every report, which is sent every [`AGAIN`]: datagrams get lost.
const REPORTED: u64 = 3;
/// Pause of a sender that has used up its rate.
const REFILL: Span = Span::from_millis(1);
/// Number of datagrams handled between two looks at the clock.
const AT_ONCE: usize = 64;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes received per second, here and by the other measurers.
    pub seconds: Vec<(u64, u64)>,
    /// Number of seconds without the reports of all measurers; they do not count.
    pub incomplete: usize,
    /// Median over the seconds of the smaller direction.
    pub rate: Rate,
}

/// Our sender name and one key per peer.
struct Keys {
    ours: Sender,
    peers: BTreeMap<Sender, (Key, usize)>,
}

impl Keys {
    fn new(identity: &Identity, peers: &[CapacityPeer]) -> Keys {
        let name = |key: &[u8; 32]| key[..8].try_into().expect("8 bytes");
        let secret = identity.schedule_secret();
        let shared = |peer: &CapacityPeer| Key::of_pair(&x25519_dalek::x25519(secret, peer.onion_key));
        let peers = peers.iter().enumerate().map(|(i, peer)| (name(&peer.onion_key), (shared(peer), i)));
        Keys { ours: name(&identity.relay_public().onion), peers: peers.collect() }
    }
}

/// Paces data datagrams.
struct Load {
    bucket: TokenBucket,
    next: u64,
}

impl Load {
    fn new(rate: u64) -> Load {
        let bytes = rate / 8;
        let bucket = TokenBucket::new(BucketPlan {
            rate_bytes_per_s: bytes,
            burst_bytes: (bytes / 100).max(DATAGRAM as u64),
            refill_every: REFILL,
            drop_fractions: false,
        });
        Load { bucket, next: 0 }
    }

    /// Sends the datagrams that the rate allows now.
    fn send(&mut self, socket: &UdpSocket, to: SocketAddr, ours: Sender, key: &Key) {
        let mut datagram = [0; DATAGRAM];
        for _ in 0..AT_ONCE {
            if self.bucket.available(clock::now()) < DATAGRAM as u64 {
                return;
            }
            let head =
                Head { kind: ProbeKind::Data, sender: ours, nonce: [0; 16], number: self.next, value: 0 };
            datagram[..HEAD].copy_from_slice(&head.seal(key));
            self.bucket.take(DATAGRAM as u64);
            // A local send error is like a loss on the path.
            if socket.try_send_to(&datagram, to).is_err() {
                return;
            }
            self.next += 1;
        }
    }
}

/// Waits for datagrams or until a sender may continue, then passes on the datagrams that are here.
async fn receive(socket: &UdpSocket, until: Time, mut take: impl FnMut(&[u8], SocketAddr)) -> io::Result<()> {
    tokio::select! {
        ready = socket.readable() => ready?,
        () = clock::until(until) => {}
    }
    let mut buffer = [0; DATAGRAM + 1];
    for _ in 0..AT_ONCE {
        match socket.try_recv_from(&mut buffer) {
            Ok((count, from)) => take(&buffer[..count], from),
            // The queue is empty, or an earlier datagram met a closed port: its receiver may not listen yet.
            Err(_) => break,
        }
    }
    Ok(())
}

/// A probe that a peer started.
struct Session {
    key: Key,
    with: Sender,
    to: SocketAddr,
    /// Set by the first data datagram.
    since: Option<Time>,
    heard: Time,
    seconds: u64,
    counts: Vec<u64>,
    load: Load,
    report_due: Time,
}

/// Answers probes of `peers`, one at a time and at most at `rate` bits per second, until dropped.
///
/// # Errors
/// If the socket fails.
pub async fn serve(
    socket: UdpSocket,
    identity: &Identity,
    peers: &[CapacityPeer],
    rate: u64,
) -> io::Result<()> {
    let keys = Keys::new(identity, peers);
    // Nonces of the last answer to each peer.
    let mut answered: BTreeMap<Sender, (Nonce, Nonce)> = BTreeMap::new();
    let mut session: Option<Session> = None;
    loop {
        let until = if session.is_some() { clock::now() + REFILL } else { Time::NEVER };
        receive(&socket, until, |datagram, from| {
            let Some((sender, (pair, _))) =
                Head::claimed(datagram).and_then(|s| keys.peers.get_key_value(&s))
            else {
                return;
            };
            let now = clock::now();
            let mut of_session = None;
            if let Some(current) = session.as_mut().filter(|session| session.with == *sender) {
                of_session = Head::open(datagram, &current.key);
                if let Some(Head { kind: ProbeKind::Data, .. }) = of_session {
                    let since = *current.since.get_or_insert(now);
                    current.heard = now;
                    let second = (now.since(since).0 / 1_000_000_000).min(current.seconds) as usize;
                    current.counts.resize(current.counts.len().max(second + 1), 0);
                    current.counts[second] += datagram.len() as u64;
                }
            }
            if of_session.is_some() || session.as_ref().is_some_and(|session| session.since.is_some()) {
                return;
            }
            let Some(start) = Head::open(datagram, pair).filter(|head| head.kind == ProbeKind::Start) else {
                return;
            };
            if !(1..=MAX_SECONDS).contains(&start.number) || start.value == 0 {
                return;
            }
            let again = answered.get(sender).filter(|(theirs, _)| *theirs == start.nonce);
            let ours = again.map_or_else(random, |(_, ours)| *ours);
            answered.insert(*sender, (start.nonce, ours));
            let number = beginning(&start.nonce);
            let challenge =
                Head { kind: ProbeKind::Challenge, sender: keys.ours, nonce: ours, number, value: 0 };
            let _ = socket.try_send_to(&challenge.seal(pair), from);
            session = Some(Session {
                key: pair.of_session(&start.nonce, &ours),
                with: *sender,
                to: from,
                since: None,
                heard: now,
                seconds: start.number,
                counts: Vec::new(),
                load: Load::new(start.value.min(rate)),
                report_due: Time::ZERO,
            });
        })
        .await?;
        let Some(current) = &mut session else { continue };
        let now = clock::now();
        if now > current.heard + SILENCE {
            session = None;
            continue;
        }
        if let Some(since) = current.since {
            if now < since + Span::from_secs(current.seconds) {
                current.load.send(&socket, current.to, keys.ours, &current.key);
            }
            if now >= current.report_due {
                current.report_due = now + AGAIN;
                report(&socket, keys.ours, current, now.since(since).0 / 1_000_000_000);
            }
        }
    }
}

/// Reports the bytes of the last complete seconds.
fn report(socket: &UdpSocket, ours: Sender, session: &Session, over: u64) {
    let over = over.min(session.seconds);
    for second in over.saturating_sub(REPORTED)..over {
        let value = session.counts.get(second as usize).copied().unwrap_or(0);
        let head = Head { kind: ProbeKind::Report, sender: ours, nonce: [0; 16], number: second, value };
        let _ = socket.try_send_to(&head.seal(&session.key), session.to);
    }
}

/// State of one peer of our probe.
struct Other {
    key: Option<Key>,
    load: Load,
    reports: BTreeMap<u64, u64>,
}

/// Probes with all `peers` at once, sending and asking for at most `rate` bits per second in total.
///
/// # Errors
/// If a peer does not answer, or the socket fails.
pub async fn probe(
    socket: UdpSocket,
    identity: &Identity,
    peers: &[CapacityPeer],
    rate: Rate,
    seconds: u64,
) -> io::Result<Capacity> {
    let keys = Keys::new(identity, peers);
    let share = (rate.0 / peers.len().max(1) as u64).max(1);
    let mut others: Vec<Other> =
        peers.iter().map(|_| Other { key: None, load: Load::new(share), reports: BTreeMap::new() }).collect();
    challenge(&socket, &keys, peers, &mut others, (rate, seconds)).await?;
    let since = clock::now();
    let mut received = vec![0u64; seconds as usize];
    let complete = |other: &Other| other.reports.len() as u64 == seconds;
    while clock::now() < since + Span::from_secs(seconds) + LATE && !others.iter().all(complete) {
        receive(&socket, clock::now() + REFILL, |datagram, _| {
            let Some((_, i)) = Head::claimed(datagram).and_then(|s| keys.peers.get(&s)) else { return };
            let other = &mut others[*i];
            let Some(head) = other.key.as_ref().and_then(|key| Head::open(datagram, key)) else { return };
            match head.kind {
                ProbeKind::Data => {
                    let second = (clock::now().since(since).0 / 1_000_000_000) as usize;
                    if let Some(count) = received.get_mut(second) {
                        *count += datagram.len() as u64;
                    }
                }
                ProbeKind::Report if head.number < seconds => {
                    other.reports.insert(head.number, head.value);
                }
                _ => {}
            }
        })
        .await?;
        for (other, peer) in others.iter_mut().zip(peers) {
            // Sends a little longer than the counted seconds, so that peers still send their last reports.
            if let Some(key) = &other.key {
                other.load.send(&socket, peer.address, keys.ours, key);
            }
        }
    }
    Ok(counted(&received, &others))
}

/// Agrees with every peer on a session key.
async fn challenge(
    socket: &UdpSocket,
    keys: &Keys,
    peers: &[CapacityPeer],
    others: &mut [Other],
    (rate, seconds): (Rate, u64),
) -> io::Result<()> {
    let nonce: Nonce = random();
    for _ in 0..TRIES {
        // UDP loses datagrams: repeat the start for peers that have not answered.
        let silent: BTreeSet<usize> = (0..peers.len()).filter(|i| others[*i].key.is_none()).collect();
        if silent.is_empty() {
            break;
        }
        for (pair, i) in keys.peers.values().filter(|(_, i)| silent.contains(i)) {
            let head =
                Head { kind: ProbeKind::Start, sender: keys.ours, nonce, number: seconds, value: rate.0 };
            let _ = socket.try_send_to(&head.seal(pair), peers[*i].address);
        }
        let end = clock::now() + AGAIN;
        while clock::now() < end && others.iter().any(|other| other.key.is_none()) {
            receive(socket, end, |datagram, _| {
                let Some((pair, i)) = Head::claimed(datagram).and_then(|s| keys.peers.get(&s)) else {
                    return;
                };
                if let Some(head) = Head::open(datagram, pair)
                    && head.kind == ProbeKind::Challenge
                    && head.number == beginning(&nonce)
                {
                    others[*i].key = Some(pair.of_session(&nonce, &head.nonce));
                }
            })
            .await?;
        }
    }
    if let Some(i) = others.iter().position(|other| other.key.is_none()) {
        let cause =
            format!("{} at {} does not answer, or serves another probe", peers[i].name, peers[i].address);
        return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
    }
    Ok(())
}

/// Keeps the seconds that all peers reported, and computes the median of the smaller direction.
fn counted(received: &[u64], others: &[Other]) -> Capacity {
    let mut result = Capacity { seconds: Vec::new(), incomplete: 0, rate: Rate(0) };
    for (second, received) in received.iter().enumerate() {
        let reported: Option<u64> = others.iter().map(|other| other.reports.get(&(second as u64))).sum();
        match reported {
            Some(sent) => result.seconds.push((*received, sent)),
            None => result.incomplete += 1,
        }
    }
    let mut smaller: Vec<u64> = result.seconds.iter().map(|(a, b)| *a.min(b)).collect();
    smaller.sort_unstable();
    if let Some(median) = smaller.get(smaller.len() / 2) {
        result.rate = Rate::from_bytes_per_s(*median);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").await.unwrap()
    }

    fn peer(name: &str, socket: &UdpSocket, identity: &Identity) -> CapacityPeer {
        let onion_key = identity.relay_public().onion;
        CapacityPeer { name: name.into(), address: socket.local_addr().unwrap(), onion_key }
    }

    /// Probes two peers at a rate of 6 Mbit/s, which are at 4 Mbit/s each, while a stranger asks for a probe.
    async fn probe_among_strangers() -> Capacity {
        let (us, a, b) = (Identity::generate(), Identity::generate(), Identity::generate());
        let (at_us, at_a, at_b) = (socket().await, socket().await, socket().await);
        let ours = [peer("us", &at_us, &us)];
        let peers = [peer("a", &at_a, &a), peer("b", &at_b, &b)];
        let stranger = Identity::generate();
        let at_stranger = socket().await;
        // A start under an unknown key, noise, and a head with a wrong MAC.
        let shared = x25519_dalek::x25519(stranger.schedule_secret(), peers[0].onion_key);
        let sender = stranger.relay_public().onion[..8].try_into().unwrap();
        let start = Head { kind: ProbeKind::Start, sender, nonce: [0; 16], number: 1, value: 1_000_000 };
        at_stranger.send_to(&start.seal(&Key::of_pair(&shared)), peers[0].address).await.unwrap();
        at_stranger.send_to(&[0xff; 300], peers[0].address).await.unwrap();
        let mut forged = start;
        forged.sender = us.relay_public().onion[..8].try_into().unwrap();
        at_stranger.send_to(&forged.seal(&Key::of_pair(&shared)), peers[0].address).await.unwrap();
        let capacity = tokio::select! {
            _ = serve(at_a, &a, &ours, 4_000_000) => unreachable!("it serves for ever"),
            _ = serve(at_b, &b, &ours, 4_000_000) => unreachable!("it serves for ever"),
            capacity = probe(at_us, &us, &peers, Rate(6_000_000), 2) => capacity.unwrap(),
        };
        assert!(capacity.rate.0 <= 6_500_000, "{capacity:?}");
        assert_eq!(capacity.seconds.len() + capacity.incomplete, 2);
        let answer = at_stranger.try_recv_from(&mut [0; 100]).map(|(count, _)| count);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::WouldBlock, "no answer to strangers");
        capacity
    }

    #[tokio::test]
    async fn rates_converge_and_strangers_get_no_service() {
        let mut capacity = probe_among_strangers().await;
        // A pause of the machine in the two seconds lowers the rate, so one of up to 5 probes must reach it.
        for _ in 1..5 {
            if capacity.rate.0 >= 3_000_000 {
                break;
            }
            capacity = probe_among_strangers().await;
        }
        // 6 Mbit/s leave and 8 arrive, so the smaller counts. The bounds are loose because the machine may be
        // busy.
        assert!((3_000_000..=6_500_000).contains(&capacity.rate.0), "{capacity:?}");
    }

    #[tokio::test]
    async fn a_silent_peer_is_named() {
        let (us, a) = (Identity::generate(), Identity::generate());
        let (at_us, at_a) = (socket().await, socket().await);
        let peers = [peer("nobody", &at_a, &a)];
        let error = probe(at_us, &us, &peers, Rate(1_000_000), 1).await.unwrap_err();
        assert!(error.to_string().contains("nobody at 127.0.0.1"), "{error}");
    }
}
