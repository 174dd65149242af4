//! The table of faults.

use std::time::Duration;

use tidegate_net::identity::fill;
use tidegate_net::link;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::layer::BODY;
use tidegate_proto::crypto::wire::{self, command};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::client::TlsStream;

use super::neighbour::*;

/// Faults before and after a link's handshake.
pub const LINK_FAULTS: [&str; 14] = [
    "no version in common",
    "a cell before VERSIONS",
    "a circuit before NETINFO",
    "a wrong AUTHENTICATE",
    "CERTS without AUTHENTICATE",
    "VERSIONS again",
    "CERTS again",
    "NETINFO again",
    "a cell of an unknown command",
    "CREATE_FAST under a number of the relay's",
    "CREATE2 of an unknown kind",
    "CREATE2 with a wrong onion skin",
    "RELAY of no circuit",
    "CREATED2 of no circuit",
];

pub async fn tell_link(relay: Relay, fault: &str) -> Answer {
    let drop_cell = |wanted: u8| {
        move |bytes: &mut Vec<u8>| {
            // Variable-length cells begin with circuit id, command and length.
            let mut kept = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let versions = rest.starts_with(&[0, 0, command::VERSIONS]);
                let length = match rest[..] {
                    _ if versions => 5 + usize::from(rest[4]),
                    _ if wire::is_variable(rest[4]) => {
                        7 + usize::from(u16::from_be_bytes([rest[5], rest[6]]))
                    }
                    _ => wire::FIXED,
                };
                let (cell, next) = rest.split_at(length);
                if versions || cell[4] != wanted {
                    kept.extend_from_slice(cell);
                }
                rest = next;
            }
            *bytes = kept;
        }
    };
    let keys = RouterKeys::generate(&mut fill);
    let spoil = |bytes: &mut Vec<u8>| {
        // The last byte of its signature: the cell precedes VPADDING and NETINFO.
        let authenticate =
            (0..bytes.len()).find(|at| bytes[*at..].starts_with(&[0, 0, 0, 0, command::AUTHENTICATE]));
        authenticate.inspect(|at| bytes[at + 7 + 4 + 352 - 1] ^= 1);
    };
    let began = match fault {
        "no version in common" => {
            let mut stream = connect(relay).await;
            stream.write_all(&[0, 0, command::VERSIONS, 0, 2, 0, 99]).await.unwrap();
            return closes(&mut stream).await;
        }
        "a cell before VERSIONS" => {
            let mut stream = connect(relay).await;
            stream.write_all(&[0; wire::FIXED]).await.unwrap();
            return closes(&mut stream).await;
        }
        "a circuit before NETINFO" => shake(relay, None, drop_cell(command::NETINFO)).await,
        "a wrong AUTHENTICATE" => shake(relay, Some(&keys), spoil).await,
        "CERTS without AUTHENTICATE" => shake(relay, Some(&keys), drop_cell(command::AUTHENTICATE)).await,
        _ => Some(good(relay).await),
    };
    let Some(mut link) = began else { return Answer::Closed };
    match fault {
        "VERSIONS again" => link.cell(0, command::VERSIONS, &[0, 5]).await,
        "CERTS again" => link.cell(0, command::CERTS, &[0]).await,
        "NETINFO again" => link.cell(0, command::NETINFO, &[0, 0, 0, 0, 4, 4, 127, 0, 0, 1, 0]).await,
        "a cell of an unknown command" => link.cell(0, 99, &[]).await,
        "CREATE_FAST under a number of the relay's" => link.cell(1, CREATE_FAST, &[7; 20]).await,
        "CREATE2 of an unknown kind" => link.cell(CIRCUIT, CREATE2, &[0, 9, 0, 84]).await,
        "CREATE2 with a wrong onion skin" => link.cell(CIRCUIT, CREATE2, &[0, 2, 0, 84]).await,
        "RELAY of no circuit" => link.cell(CIRCUIT, RELAY, &[7; BODY]).await,
        "CREATED2 of no circuit" => link.cell(CIRCUIT, CREATED2, &[0, 64]).await,
        _ => {}
    }
    link.link_answer().await
}

/// Whether the relay closes the connection.
async fn closes(stream: &mut TlsStream<link::BufferedTcp>) -> Answer {
    let read = async { while stream.read(&mut [0; 4096]).await.unwrap_or(0) > 0 {} };
    tokio::time::timeout(Duration::from_secs(5), read).await.map_or(Answer::Ignored, |()| Answer::Closed)
}

/// Faults of an open circuit and its streams.
pub const CIRCUIT_FAULTS: [&str; 30] = [
    "nothing",
    "CREATE_FAST again",
    "a cell that is not recognised",
    "a message longer than a cell",
    "an early SENDME",
    "an early SENDME of no stream",
    "an early SENDME of a stream",
    "a SENDME with the right digest",
    "a SENDME with a wrong digest",
    "a SENDME with half a digest",
    "EXTEND2 in a RELAY cell",
    "EXTEND2 that is cut",
    "EXTEND2 without an identity",
    "EXTEND2 to the relay itself",
    "unexpected EXTENDED2",
    "TRUNCATE of nothing",
    "nine RELAY_EARLY",
    "BEGIN without an end",
    "BEGIN without a port",
    "BEGIN of stream 0",
    "BEGIN on the first hop",
    "BEGIN_DIR twice",
    "DATA of no stream",
    "DATA of stream 0",
    "XOFF without congestion control",
    "a message of an unknown command",
    "LINK without congestion control",
    "LINKED at a relay",
    "LINKED_ACK of no set",
    "SWITCH of no set",
];

/// Contents of LINK and LINKED (proposal 329).
fn link_of(nonce: [u8; 32]) -> Vec<u8> {
    [&[1][..], &nonce, &[0; 16], &[1]].concat()
}

pub async fn tell_circuit(relay: Relay, fault: &str) -> Answer {
    let mut link = circuit(relay).await;
    // IPv4 address and port, fingerprint.
    let ip = [0, 6, 127, 0, 0, 1, 0, 9];
    let identity = |fingerprint: [u8; 20]| [&[2, 20][..], &fingerprint].concat();
    let skin = [&[0, 2, 0, 84][..], &[7; 84]].concat();
    let to = |fingerprint| [&[2][..], &ip, &identity(fingerprint), &skin].concat();
    let (kind, bytes) = match fault {
        "nothing" => return link.answer().await,
        "CREATE_FAST again" => {
            link.cell(CIRCUIT, CREATE_FAST, &[7; 20]).await;
            return link.answer().await;
        }
        "a cell that is not recognised" => {
            link.cell(CIRCUIT, RELAY, &[7; BODY]).await;
            return link.answer().await;
        }
        "a message longer than a cell" => {
            let mut body = message(DATA, 1, &[]);
            body[9..11].copy_from_slice(&499u16.to_be_bytes());
            (RELAY, body)
        }
        "an early SENDME" => (RELAY, message(SENDME, 0, &[&[1, 0, 20][..], &[7; 20]].concat())),
        "an early SENDME of no stream" => (RELAY, message(SENDME, 9, &[])),
        "an early SENDME of a stream" => {
            link.say(RELAY, message(BEGIN_DIR, 1, &[])).await;
            (RELAY, message(SENDME, 1, &[]))
        }
        "a SENDME with the right digest" | "a SENDME with a wrong digest" | "a SENDME with half a digest" => {
            let digest = link.digest_of(100).await;
            let bytes = match fault {
                "a SENDME with the right digest" => [&[1, 0, 20][..], &digest].concat(),
                "a SENDME with a wrong digest" => [&[1, 0, 20][..], &[7; 20]].concat(),
                _ => [&[1, 0, 10][..], &digest[..10]].concat(),
            };
            (RELAY, message(SENDME, 0, &bytes))
        }
        "EXTEND2 in a RELAY cell" => (RELAY, message(EXTEND2, 0, &to([9; 20]))),
        "EXTEND2 that is cut" => (EARLY, message(EXTEND2, 0, &to([9; 20])[..40])),
        "EXTEND2 without an identity" => (EARLY, message(EXTEND2, 0, &[&[1][..], &ip, &skin].concat())),
        "EXTEND2 to the relay itself" => (EARLY, message(EXTEND2, 0, &to(relay.fingerprint))),
        "unexpected EXTENDED2" => (RELAY, message(EXTENDED2, 0, &[0, 1, 7])),
        "TRUNCATE of nothing" => (RELAY, message(TRUNCATE, 0, &[])),
        "nine RELAY_EARLY" => {
            for _ in 0..8 {
                link.say(EARLY, message(10, 0, &[])).await;
            }
            (EARLY, message(10, 0, &[]))
        }
        "BEGIN without an end" => (RELAY, message(BEGIN, 1, b"127.0.0.1:80")),
        "BEGIN without a port" => (RELAY, message(BEGIN, 1, b"127.0.0.1\0")),
        "BEGIN of stream 0" => (RELAY, message(BEGIN, 0, b"127.0.0.1:80\0")),
        "BEGIN on the first hop" => (RELAY, message(BEGIN, 1, b"127.0.0.1:80\0\0\0\0\0")),
        "BEGIN_DIR twice" => {
            link.say(RELAY, message(BEGIN_DIR, 1, &[])).await;
            (RELAY, message(BEGIN_DIR, 1, &[]))
        }
        "DATA of no stream" => (RELAY, message(DATA, 9, b"data")),
        "DATA of stream 0" => (RELAY, message(DATA, 0, b"data")),
        "XOFF without congestion control" => {
            link.say(RELAY, message(BEGIN_DIR, 1, &[])).await;
            (RELAY, message(XOFF, 1, &[0]))
        }
        "a message of an unknown command" => (RELAY, message(99, 0, &[])),
        "LINK without congestion control" => (RELAY, message(19, 0, &link_of([7; 32]))),
        "LINKED at a relay" => (RELAY, message(20, 0, &link_of([7; 32]))),
        "LINKED_ACK of no set" => (RELAY, message(21, 0, &[])),
        "SWITCH of no set" => (RELAY, message(22, 0, &[0, 0, 0, 1])),
        other => unreachable!("{other}"),
    };
    link.say(kind, bytes).await;
    link.answer().await
}
