//! Tests of manifests: what they list, what they cost, and what they refuse.

use tidegate_control::units::{Span, Time};

use super::*;
use crate::Peer;
use crate::packet::Video;

const SECRET: [u8; 32] = [9; 32];
const TOTAL: usize = 11;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn packet(group: u32, slice: u8) -> Video {
    Video { key: Key { group, slice }, data: 10, sent: 0, payload: vec![group as u8; 1128].into() }
}

/// Signs groups, one packet per 2 ms. Returns what leaves, in order.
fn sign(groups: std::ops::Range<u32>) -> (Signer, Vec<(Time, Bytes)>) {
    let mut signer = Signer::new(&SECRET, TOTAL);
    let mut sent = Vec::new();
    let mut now = Time::ZERO;
    for group in groups {
        for slice in 0..TOTAL as u8 {
            now += Span::from_millis(2);
            signer.push(now, Key { group, slice }, packet(group, slice).encode(), 10);
            sent.extend(signer.due(now, 10).into_iter().map(|(_, bytes)| (now, bytes)));
        }
    }
    while signer.next_time() != Time::NEVER {
        now = now.max(signer.next_time());
        sent.extend(signer.due(now, 10).into_iter().map(|(_, bytes)| (now, bytes)));
    }
    (signer, sent)
}

fn verifier(signer: &Signer) -> Verifier {
    let mut verifier = Verifier::new(SharedChecks::default());
    assert!(verifier.restart(&signer.public()));
    verifier
}

#[test]
fn each_packet_follows_the_manifest_that_lists_it() {
    let (signer, sent) = sign(1..11);
    let mut verifier = verifier(&signer);
    let mut packets = 0;
    for (now, bytes) in sent {
        if bytes[0] == MANIFEST {
            assert!(matches!(verifier.add(now, 1, &bytes, 0), Added::New(_)));
            assert!(matches!(verifier.add(now, 1, &bytes, 0), Added::Known));
            continue;
        }
        let Some(crate::packet::Datagram::Video(video)) = crate::packet::decode(&bytes) else { panic!() };
        assert_eq!(verifier.check(video.key, &bytes), Check::Genuine);
        let other = Key { group: video.key.group, slice: (video.key.slice + 1) % 11 };
        assert_eq!(verifier.check(other, &bytes), Check::Forged, "another position");
        packets += 1;
    }
    assert_eq!(packets, 110);
    assert_eq!(verifier.check(Key { group: 11, slice: 0 }, &packet(11, 0).encode()), Check::Unknown);
    assert!(signer.manifest(Key { group: 10, slice: 10 }).is_some());
    assert_eq!(signer.manifest(Key { group: 11, slice: 0 }), None);
}

#[test]
fn manifests_of_others_and_damaged_ones_are_refused() {
    let (_, sent) = sign(1..5);
    let (other, _) = (Signer::new(&[8; 32], TOTAL), ());
    let manifest = &sent[0].1;
    assert!(matches!(verifier(&other).add(at(0), 1, manifest, 0), Added::Forged), "another server's key");
    let (signer, _) = sign(1..2);
    for byte in (1..manifest.len()).step_by(7) {
        let mut damaged = manifest.to_vec();
        damaged[byte] ^= 0x10;
        assert!(matches!(verifier(&signer).add(at(0), 1, &damaged.into(), 0), Added::Forged), "byte {byte}");
    }
    for length in 0..manifest.len() {
        assert!(matches!(verifier(&signer).add(at(0), 1, &manifest.slice(..length), 0), Added::Forged));
    }
    // Old ones cost nothing, and a peer that forges is not heard for a second.
    let mut verifier = verifier(&signer);
    assert!(matches!(verifier.add(at(0), 1, manifest, 9), Added::Known));
    let mut damaged = manifest.to_vec();
    damaged[40] ^= 1;
    let damaged = Bytes::from(damaged);
    assert!(matches!(verifier.add(at(0), 1, &damaged, 0), Added::Forged));
    assert!(matches!(verifier.add(at(500), 1, &damaged, 0), Added::Ignored));
    assert!(matches!(verifier.add(at(500), 2, manifest, 0), Added::New(_)), "another peer is heard");
    assert!(matches!(verifier.add(at(1500), 1, &damaged, 0), Added::Known));
}

#[test]
fn packets_without_a_manifest_are_few_and_do_not_delay_others() {
    let (signer, sent) = sign(1..5);
    let mut verifier = verifier(&signer);
    for n in 0..10_000_u32 {
        let key = Key { group: 100 + n, slice: (n % 3) as u8 };
        verifier.hold(at(0), 7 as Peer, true, key, packet(key.group, key.slice).encode());
    }
    let held = Key { group: 2, slice: 5 };
    verifier.hold(at(1), 8, true, held, packet(2, 5).encode());
    // Requests for forged positions are bounded, and the genuine one is among the first.
    let asked: Vec<Key> =
        std::iter::from_fn(|| verifier.ask(at(200), Span::from_secs(2)).map(|(key, ..)| key)).collect();
    assert!(asked.len() <= 128 && asked[0] == held, "{} requests, {:?} first", asked.len(), asked[0]);
    assert!(matches!(verifier.add(at(300), 8, &sent[0].1, 0), Added::New(_)));
    let listed: Vec<Key> = verifier.take_listed().iter().map(|held| held.key).collect();
    assert_eq!(listed, [held]);
    assert!(verifier.ask(at(3000), Span::from_secs(2)).is_none(), "all are too old");
    assert_eq!(verifier.next_time(), Time::NEVER);
}

#[test]
fn shared_results_are_of_the_same_memory_only() {
    let (signer, sent) = sign(1..5);
    let shared = SharedChecks::shared();
    let mut verifiers = [0, 1].map(|_| Verifier::new(shared.clone()));
    for verifier in &mut verifiers {
        assert!(verifier.restart(&signer.public()));
        assert!(matches!(verifier.add(at(0), 1, &sent[0].1, 0), Added::New(_)));
        let genuine = packet(1, 0).encode();
        let mut forged = genuine.to_vec();
        forged[100] ^= 1;
        for _ in 0..2 {
            assert_eq!(verifier.check(Key { group: 1, slice: 0 }, &genuine), Check::Genuine);
            assert_eq!(verifier.check(Key { group: 1, slice: 0 }, &forged.clone().into()), Check::Forged);
        }
    }
}
