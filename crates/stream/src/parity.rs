//! Parity packets, which recover missing packets of a group.
//!
//! One parity slice is the exclusive or of the data slices. Several use Reed-Solomon, which is slower: its decoder
//! visits 65,536 points for any number of packets.

use bytes::{BufMut as _, Bytes};

/// Encodes a payload as a shard: length, payload, zeros up to the longest of the group.
fn shard(payload: &[u8], length: usize) -> Vec<u8> {
    let mut shard = Vec::with_capacity(length);
    shard.put_u16(payload.len() as u16);
    shard.put_slice(payload);
    shard.resize(length, 0);
    shard
}

/// Adds a payload's shard to a sum of shards.
fn add(sum: &mut [u8], payload: &[u8]) {
    let (head, rest) = sum.split_at_mut(2);
    let length = (payload.len() as u16).to_be_bytes();
    head.iter_mut().zip(length).for_each(|(sum, byte)| *sum ^= byte);
    rest.iter_mut().zip(payload).for_each(|(sum, byte)| *sum ^= byte);
}

/// Decodes a shard; `None` if its length is wrong.
fn payload(shard: &[u8]) -> Option<Bytes> {
    let (head, payload) = shard.split_first_chunk::<2>()?;
    payload.get(..usize::from(u16::from_be_bytes(*head))).map(Bytes::copy_from_slice)
}

/// The parity payloads of a group.
///
/// # Panics
/// If `payloads` is empty, or `parity` is zero.
pub(crate) fn protect(payloads: &[Bytes], parity: usize) -> Vec<Bytes> {
    let longest = payloads.iter().map(Bytes::len).max().expect("a group has packets");
    let length = (2 + longest).next_multiple_of(2);
    if parity == 1 {
        let mut sum = vec![0; length];
        payloads.iter().for_each(|payload| add(&mut sum, payload));
        return vec![sum.into()];
    }
    let shards: Vec<Vec<u8>> = payloads.iter().map(|payload| shard(payload, length)).collect();
    let made =
        reed_solomon_simd::encode(payloads.len(), parity, shards).expect("counts are small and lengths even");
    made.into_iter().map(Bytes::from).collect()
}

/// Recovers the missing payloads of a group of `data` payloads, if enough arrived.
///
/// `present` holds pairs of slice and payload, `shards` pairs of parity slice (from zero) and payload. Inconsistent
/// shards recover nothing.
pub(crate) fn restore(
    data: usize,
    parity: usize,
    present: &[(usize, &Bytes)],
    shards: &[(usize, &Bytes)],
) -> Vec<(usize, Bytes)> {
    let Some((_, first)) = shards.first() else { return Vec::new() };
    let length = first.len();
    if length < 2 || present.iter().any(|(_, payload)| payload.len() + 2 > length) {
        return Vec::new();
    }
    if parity == 1 {
        let missing: Vec<usize> =
            (0..data).filter(|slice| present.iter().all(|(at, _)| at != slice)).collect();
        // One exclusive or recovers exactly one packet.
        let [missing] = missing[..] else { return Vec::new() };
        let mut sum = first.to_vec();
        present.iter().for_each(|(_, payload)| add(&mut sum, payload));
        return payload(&sum).map(|payload| (missing, payload)).into_iter().collect();
    }
    let originals = present.iter().map(|(slice, payload)| (*slice, shard(payload, length)));
    let shards = shards.iter().map(|(at, shard)| (*at, &shard[..]));
    // Too few or inconsistent shards are normal: packets are lost or forged.
    let Ok(restored) = reed_solomon_simd::decode(data, parity, originals, shards) else {
        return Vec::new();
    };
    let whole = |(slice, shard): (usize, Vec<u8>)| payload(&shard).map(|payload| (slice, payload));
    let mut payloads: Vec<(usize, Bytes)> = restored.into_iter().filter_map(whole).collect();
    payloads.sort_by_key(|(slice, _)| *slice);
    payloads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_shard_recovers_one_packet(
            data in 1usize..16, parity in 1usize..4, seed: u64, lengths in proptest::collection::vec(0usize..7, 16)
        ) {
            let mut draws = tidegate_control::random::Seed::root(seed).random();
            let payloads: Vec<Bytes> = (0..data)
                .map(|n| (0..lengths[n] * 188).map(|_| draws.bits() as u8).collect::<Vec<u8>>().into())
                .collect();
            let shards = protect(&payloads, parity);
            let mut order: Vec<usize> = (0..data).collect();
            draws.shuffle(&mut order);
            let (gone, kept) = order.split_at(parity.min(data));
            let present: Vec<(usize, &Bytes)> = kept.iter().map(|n| (*n, &payloads[*n])).collect();
            let shards: Vec<(usize, &Bytes)> = shards.iter().enumerate().collect();
            let mut gone = gone.to_vec();
            gone.sort();
            let expected: Vec<(usize, Bytes)> = gone.iter().map(|n| (*n, payloads[*n].clone())).collect();
            prop_assert_eq!(restore(data, parity, &present, &shards), expected);
            if shards.len() > 1 && gone.len() == shards.len() {
                prop_assert!(restore(data, parity, &present, &shards[1..]).is_empty());
            }
        }
    }
}
