//! The link handshake, and each side's reaction to the other's faults.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use sha2::{Digest as _, Sha256};
use tidegate_control::random::Seed;
use tidegate_control::units::Span;
use tidegate_proto::crypto::KeyLifetimes;
use tidegate_proto::crypto::cert::{Certified, Renewal, RouterKeys, Signing};
use tidegate_proto::crypto::link::{Handshake, LinkError, Peer, Start, Tls};
use tidegate_proto::crypto::rsa_keys::Invalid;

const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;
const CERTIFICATE: &[u8] = b"a certificate";
const CERTS: u8 = 129;
const AUTHENTICATE: u8 = 131;
const VPADDING: u8 = 128;
const NETINFO: u8 = 8;

/// Generated once, because RSA key generation is slow.
static KEYS: LazyLock<[RouterKeys; 2]> = LazyLock::new(|| {
    let mut random = Seed::root(1).random();
    let mut fill = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = random.bits() as u8);
    [RouterKeys::generate(&mut fill), RouterKeys::generate(&mut fill)]
});

/// A relay's short-lived keys, certified at a time.
fn certified(which: usize, then: u64) -> Arc<Certified> {
    let [signing, link] = KeyLifetimes::default().certified(then);
    let signing = Signing::new([which as u8 + 1; 32], signing);
    Arc::new(KEYS[which].certify(signing, link, CERTIFICATE, [which as u8 + 11; 32]))
}

struct Session {
    certificate: &'static [u8],
    secret: u8,
}

const HONEST: Session = Session { certificate: CERTIFICATE, secret: 7 };

impl Tls for Session {
    fn certificate(&self) -> [u8; 32] {
        Sha256::digest(self.certificate).into()
    }
    fn export(&self, context: &[u8]) -> [u8; 32] {
        Sha256::digest([&[self.secret], context].concat()).into()
    }
}

fn start(keys: Option<Arc<Certified>>) -> Start {
    let address = IpAddr::from([192, 0, 2, 1]);
    Start { keys, now: NOW, random: [5; 32], address, ours: vec![address], quic: true, extensions: true }
}

/// The cells of a flight that does not begin with VERSIONS.
fn cells(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let length =
            if bytes[4] >= 128 { 7 + usize::from(u16::from_be_bytes([bytes[5], bytes[6]])) } else { 514 };
        let (cell, rest) = bytes.split_at(length);
        found.push(cell.to_vec());
        bytes = rest;
    }
    found
}

type Met = Result<Option<Peer>, LinkError>;

/// The responder's result after `change` has modified the initiator's second flight.
fn answered(
    keys: Option<Arc<Certified>>,
    session: &Session,
    change: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>,
) -> Met {
    let mut initiator = Handshake::initiator(start(keys), Some(KEYS[1].fingerprint()));
    let mut responder = Handshake::responder(start(Some(certified(1, NOW))));
    assert!(matches!(responder.receive(&initiator.output(), session), Ok(None)));
    let met = initiator.receive(&responder.output(), &HONEST)?.expect("the responder has said all");
    assert_eq!(met.proved.unwrap().fingerprint, KEYS[1].fingerprint());
    responder.receive(&change(cells(&initiator.output())).concat(), session)
}

fn relay() -> Option<Arc<Certified>> {
    Some(certified(0, NOW))
}

fn without(command: u8) -> impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    move |cells| cells.into_iter().filter(|cell| cell[4] != command).collect()
}

#[test]
fn relays_prove_their_identity_and_clients_need_not() {
    let met = answered(relay(), &HONEST, |cells| cells).unwrap().unwrap();
    assert_eq!(met.proved.unwrap().fingerprint, KEYS[0].fingerprint());
    assert!(met.ours && met.quic && met.version == 5);
    let met = answered(None, &HONEST, |cells| cells).unwrap().unwrap();
    assert!(met.proved.is_none());
    let met = answered(relay(), &HONEST, without(VPADDING)).unwrap().unwrap();
    assert!(!met.ours && !met.quic, "a stock neighbour does not announce our extensions");
}

#[test]
fn a_proof_covers_the_connection_and_every_field() {
    for session in [Session { secret: 8, ..HONEST }, Session { certificate: b"another", ..HONEST }] {
        assert!(answered(relay(), &session, |cells| cells).is_err(), "another TLS session");
    }
    // Type, length, every signed field, random bytes, signature.
    for at in [7, 8, 11, 19, 51, 83, 115, 147, 179, 211, 243, 275, 299, 362] {
        let met = answered(relay(), &HONEST, |mut cells| {
            let cell = cells.iter_mut().find(|cell| cell[4] == AUTHENTICATE).unwrap();
            cell[at] ^= 1;
            cells
        });
        assert!(met.is_err(), "byte {at} changed");
    }
}

#[test]
fn missing_repeated_or_misplaced_cells_end_the_connection() {
    let met = answered(relay(), &HONEST, without(AUTHENTICATE)).unwrap().unwrap();
    assert!(met.proved.is_none(), "certificates alone prove nothing: it is a client");
    assert_eq!(answered(relay(), &HONEST, without(CERTS)), Err(LinkError::Protocol));
    for command in [CERTS, AUTHENTICATE] {
        let met = answered(relay(), &HONEST, |cells| {
            cells
                .into_iter()
                .flat_map(|cell| if cell[4] == command { vec![cell; 2] } else { vec![cell] })
                .collect()
        });
        assert_eq!(met, Err(LinkError::Protocol), "{command} twice");
    }
    let met = answered(relay(), &HONEST, |mut cells| {
        cells.reverse();
        cells
    });
    assert!(met.unwrap().unwrap().proved.is_none(), "cells after NETINFO prove nothing");
    // A CREATE cell comes before the handshake is over.
    let met = answered(relay(), &HONEST, |mut cells| {
        let mut create = vec![0; 514];
        create[4] = 10;
        cells.insert(0, create);
        cells
    });
    assert_eq!(met, Err(LinkError::Protocol));
    let met = answered(relay(), &HONEST, |cells| {
        let padding = vec![[0; 514].to_vec(); 17];
        padding.into_iter().chain(cells).collect()
    });
    assert_eq!(met, Err(LinkError::Protocol), "padding is limited");
    assert_eq!(answered(relay(), &HONEST, without(NETINFO)), Ok(None), "the responder waits for it");
}

#[test]
fn unsupported_or_endless_versions_are_refused() {
    let said = |bytes: &[u8]| Handshake::responder(start(relay())).receive(bytes, &HONEST);
    assert_eq!(said(&[0, 0, 7, 0, 4, 0, 2, 0, 3]), Err(LinkError::Version));
    for bad in [
        &[0, 0, 7, 0xff, 0xff][..],
        &[0, 0, 7, 0, 0],
        &[0, 0, 7, 0, 3],
        &[0, 0, 8, 0, 2],
        b"GET / HTTP/1.1\r\n",
    ] {
        assert_eq!(said(bad), Err(LinkError::Protocol), "{bad:?}");
    }
    // A future peer may know many versions.
    let many: Vec<u8> = (0..200u16).rev().flat_map(u16::to_be_bytes).collect();
    assert_eq!(said(&[&[0, 0, 7, 1, 144], &many[..]].concat()), Ok(None));
}

#[test]
fn a_clock_may_be_off_by_an_hour_but_not_by_months() {
    for then in [NOW - HOUR, NOW + HOUR] {
        assert!(answered(Some(certified(0, then)), &HONEST, |cells| cells).is_ok(), "{then}");
    }
    assert!(answered(Some(certified(0, NOW - 60 * 24 * HOUR)), &HONEST, |cells| cells).is_err());
}

/// Seconds since 1970, a signing key until `NOW + 100 h`, and a TLS key until `NOW + 10 h`.
const LIFETIMES: KeyLifetimes = KeyLifetimes {
    signing: Span::from_secs(100 * HOUR),
    link: Span::from_secs(10 * HOUR),
    onion: Span::from_secs(100 * HOUR),
    onion_grace: Span::from_secs(HOUR),
};

#[test]
fn short_lived_keys_are_renewed_before_they_expire() {
    let [signing, link] = LIFETIMES.certified(NOW);
    let first = KEYS[0].certify(Signing::new([1; 32], signing), link, CERTIFICATE, [2; 32]);
    assert_eq!(first.renewal(&LIFETIMES), (NOW + 9 * HOUR, Renewal::Link));
    // The TLS key has expired; the same signing key certifies another.
    let later = NOW + 85 * HOUR;
    let next = KEYS[0].certify(first.signing().clone(), later + 10 * HOUR, CERTIFICATE, [3; 32]);
    assert_eq!(next.renewal(&LIFETIMES), (NOW + 90 * HOUR, Renewal::Signing));
    assert_eq!(next.signing_certificate, first.signing_certificate);
    let at = |keys: Certified, now| {
        let keys = Some(Arc::new(keys));
        let mut initiator = Handshake::initiator(Start { now, ..start(keys) }, Some(KEYS[1].fingerprint()));
        let mut responder = Handshake::responder(Start { now, ..start(Some(certified(1, now))) });
        responder.receive(&initiator.output(), &HONEST)?;
        initiator.receive(&responder.output(), &HONEST)?;
        responder.receive(&initiator.output(), &HONEST)
    };
    let of_date = Err(LinkError::Invalid(Invalid("a certificate has expired")));
    assert_eq!(at(first, later), of_date);
    let fingerprint = |met: Met| met.unwrap().unwrap().proved.unwrap().fingerprint;
    assert_eq!(fingerprint(at(next, later)), KEYS[0].fingerprint(), "the identity stays");
    let next = KEYS[0].certify(Signing::new([1; 32], signing), later + 10 * HOUR, CERTIFICATE, [3; 32]);
    assert_eq!(at(next, NOW + 101 * HOUR), of_date, "the signing key expires, too");
}

#[test]
fn an_initiator_accepts_only_the_requested_relay() {
    let mut initiator = Handshake::initiator(start(None), Some([9; 20]));
    let mut responder = Handshake::responder(start(Some(certified(1, NOW))));
    assert_eq!(responder.receive(&initiator.output(), &HONEST), Ok(None));
    assert_eq!(initiator.receive(&responder.output(), &HONEST), Err(LinkError::OtherRelay));
}
