//! The server's edge: one publisher at a time feeds the source.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use moq_net::track::Subscription;
use moq_net::{Pattern, Patterns, Server, group, origin};
use quinn::{Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::edge::{BROADCAST, Lifetimes, Renewal, TRACK};
use super::endpoint::{self, HANDSHAKE};
use crate::clock;
use crate::identity::hex;

/// Bytes that a publisher may send ahead of what is read, over all groups.
const WINDOW: u32 = 1 << 20;
/// How long a publisher may take to announce the broadcast.
const ANNOUNCED: Duration = Duration::from_secs(10);
/// How far a group may be behind newer ones before the rest of it is skipped.
const BEHIND: Duration = Duration::from_secs(2);

/// Reads what publishers send, one after the other, until the receiver is dropped.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) async fn read(
    listen: SocketAddr,
    to: &mpsc::Sender<Bytes>,
    say: impl Fn(String) + Sync,
) -> io::Result<()> {
    let opened = endpoint::open(listen, WINDOW, Lifetimes::default())?;
    let (endpoint, address, hash) =
        (opened.endpoint.clone(), opened.edge.address, hex(&opened.edge.certificate));
    say(format!(
        "waits for a publisher at {address} with broadcast `{BROADCAST}` and track `{TRACK}`; certificate {hash}"
    ));
    let renewing = opened.renew(|renewal| match renewal {
        Renewal::Announced { certificate, from } => say(format!(
            "next certificate {}, in use from {from} (seconds since 1970); publishers may accept both until then",
            hex(&certificate)
        )),
        Renewal::Replaced { certificate } => say(format!("certificate {} is in use", hex(&certificate))),
    });
    tokio::select! {
        () = publishers(&endpoint, to, &say) => {}
        () = renewing => {}
    }
    Ok(())
}

/// Reads one publisher after the other.
async fn publishers(endpoint: &Endpoint, to: &mpsc::Sender<Bytes>, say: &(impl Fn(String) + Sync)) {
    while !to.is_closed() {
        let Some(incoming) = endpoint.accept().await else { break };
        let from = incoming.remote_address();
        tokio::select! {
            result = publisher(incoming, to, say) => match result {
                Ok(()) => say(format!("the publisher at {from} ended the stream")),
                Err(why) => say(format!("the publisher at {from}: {why}")),
            },
            () = refuse(endpoint) => {}
            () = to.closed() => {}
        }
    }
}

/// Refuses all others while there is a publisher.
async fn refuse(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
    pending().await
}

/// Reads one publisher's stream to its end.
async fn publisher(
    incoming: Incoming,
    to: &mpsc::Sender<Bytes>,
    say: &(impl Fn(String) + Sync),
) -> Result<(), String> {
    let text = |error: moq_net::Error| error.to_string();
    let (origin, origin_driver) = endpoint::origin();
    // Other broadcasts are not announced to us, so they cost nothing.
    let mut names = Patterns::new();
    names.insert(Pattern::literal(BROADCAST).expect("a valid name"));
    let scoped = origin.scope("", &names).map_err(text)?;
    let agreed = async {
        let (connection, session) = endpoint::session(incoming).await?;
        let server = Server::new().with_subscriber(scoped);
        let (session, driver) = server.accept(clock::instant(), session).await.map_err(text)?;
        Ok::<_, String>((connection, session, driver))
    };
    let agreed = timeout(HANDSHAKE, agreed).await.map_err(|_| "no handshake in time")?;
    let (connection, _session, driver) = agreed?;
    let result = tokio::select! {
        result = media(&origin, to, say) => result,
        error = moq_net::time::run(driver) => Err(error.to_string()),
        error = moq_net::time::run(origin_driver) => Err(error.to_string()),
    };
    connection.close(0u32.into(), b"");
    result
}

/// Copies the track into the source, group by group.
async fn media(
    origin: &origin::Producer,
    to: &mpsc::Sender<Bytes>,
    say: &(impl Fn(String) + Sync),
) -> Result<(), String> {
    let text = |error: moq_net::Error| error.to_string();
    let origin = origin.consume();
    let broadcast = timeout(ANNOUNCED, origin.routed_broadcast(BROADCAST)).await;
    let broadcast = broadcast.map_err(|_| format!("announced no broadcast `{BROADCAST}`"))?.map_err(text)?;
    let subscription = Subscription::default().with_max_age(BEHIND);
    let track = broadcast.track(TRACK).map_err(text)?.subscribe(subscription).await.map_err(text)?;
    say(format!("reads broadcast `{BROADCAST}`"));
    let mut groups = track.ordered();
    while let Some(mut group) = groups.next_group().await.map_err(text)? {
        let number = group.sequence;
        if let Err(error) = copy(&mut group, to).await {
            say(format!("group {number} is incomplete: {error}"));
        }
    }
    Ok(())
}

async fn copy(group: &mut group::Consumer, to: &mpsc::Sender<Bytes>) -> Result<(), moq_net::Error> {
    while let Some(mut frame) = group.next_frame().await? {
        while let Some(bytes) = frame.read_chunk().await? {
            if to.send(bytes).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}
