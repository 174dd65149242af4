//! Tests of playback order and counters.

use proptest::prelude::*;
use tidegate_control::random::Seed;

use super::*;
use crate::packet::{Datagram, decode};
use crate::source::Source;

const SKIP_AFTER: Span = Span::from_millis(500);

/// Packets of a source with four data slices and one parity slice, one every 5 ms.
fn stream(payloads: u64) -> Vec<(Time, Video)> {
    let mut source = Source::new(4, 1);
    let mut sent = Vec::new();
    for n in 0..payloads {
        let at = Time::ZERO + Span::from_millis(n * 5);
        let mut ts = [n as u8; 6 * 188];
        ts.iter_mut().step_by(188).for_each(|first| *first = 0x47);
        for (_, bytes) in source.push(at, &ts) {
            if let Some(Datagram::Video(video)) = decode(&bytes) {
                sent.push((at, video));
            }
        }
    }
    sent
}

/// A buffer with all groups confirmed.
fn buffer() -> Reorder {
    let mut reorder = Reorder::new(4, 1, SKIP_AFTER);
    reorder.confirm(u32::MAX);
    reorder
}

proptest! {
    #[test]
    fn playback_is_in_order_and_gaps_are_counted(seed: u64, loss in 0.0..0.2f64) {
        let mut random = Seed::root(seed).random();
        let mut arrivals: Vec<(Time, Video)> = Vec::new();
        for (at, video) in stream(400) {
            if !random.chance(loss) {
                arrivals.push((at + Span::from_millis(random.below(80) as u64), video));
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        let mut reorder = buffer();
        let mut played = Vec::new();
        let mut asked = 0;
        for (at, video) in arrivals {
            reorder.insert(at, &video, true);
            asked += reorder.look(at).len();
            while let Some((payload, _)) = reorder.next(at) {
                played.push(payload[1]);
            }
        }
        let end = Time::ZERO + Span::from_secs(10);
        for ms in 0..20 {
            asked += reorder.look(end + Span::from_millis(ms * 50)).len();
            while let Some((payload, _)) = reorder.next(end + Span::from_millis(ms * 50)) {
                played.push(payload[1]);
            }
        }
        let steps: Vec<u8> = played.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        let skipped: u64 = steps.iter().map(|step| u64::from(*step) - 1).sum();
        prop_assert!(steps.iter().all(|step| (1..100).contains(step)), "{steps:?}");
        // Packets skipped after the last or before the first played one are not steps.
        let gaps = reorder.counters.gaps;
        let first = u64::from(played[0]);
        let last = first + steps.iter().map(|step| u64::from(*step)).sum::<u64>();
        let given_up = reorder.next.map_or(0, |next| u64::from(next.group - 1) * 4 + u64::from(next.slice)) - last - 1;
        let known = skipped + given_up;
        prop_assert!((known..=known + first).contains(&gaps), "{gaps} gaps, {known} known, first {first}");
        prop_assert_eq!(played.len() as u64, reorder.counters.delivered);
        // No later packet reveals that the very last ones are missing.
        prop_assert!(gaps <= 4 || asked > 0, "what was given up was asked for");
        prop_assert!(loss > 0.001 || played.len() > 380);
    }
}

#[test]
fn parity_recovers_one_loss_per_group() {
    let mut reorder = buffer();
    let mut played = 0;
    let mut last = Time::ZERO;
    for (at, video) in stream(400).into_iter().filter(|(_, video)| video.key.slice != 2) {
        reorder.insert(at, &video, true);
        reorder.look(at);
        played += std::iter::from_fn(|| reorder.next(at)).count();
        last = at;
    }
    let counters = reorder.counters;
    assert!(played > 300 && counters.gaps == 0 && counters.recovered > 90, "{counters:?} at {last}");
}

#[test]
fn packets_far_away_are_strange_and_use_no_memory() {
    let mut reorder = buffer();
    let (at, first) = stream(8).remove(0);
    assert_eq!(reorder.insert(at, &first, true), Arrival::New);
    assert_eq!(reorder.insert(at, &first, true), Arrival::Duplicate);
    for (group, slice, data) in [(u32::MAX, 0, 4), (1, 5, 4), (1, 3, 3), (1, 0, 9)] {
        let key = Key { group, slice };
        let video = Video { key, data, ..first.clone() };
        assert_eq!(reorder.insert(at, &video, true), Arrival::Strange, "{key:?}");
    }
    assert_eq!(reorder.groups.len(), 1);
    // The first packet cannot have the largest number either.
    let key = Key { group: u32::MAX, slice: 0 };
    assert_eq!(buffer().insert(at, &Video { key, ..first }, true), Arrival::Strange);
}

#[test]
fn a_forged_number_does_not_skip_unsent_packets() {
    let mut reorder = Reorder::new(4, 1, SKIP_AFTER);
    let mut played = 0;
    for (n, (at, video)) in stream(800).into_iter().enumerate() {
        if n == 100 {
            let key = Key { group: video.key.group + 4000, slice: 0 };
            assert_eq!(reorder.insert(at, &Video { key, ..video.clone() }, true), Arrival::New);
        }
        reorder.confirm(video.key.group);
        reorder.insert(at, &video, true);
        reorder.look(at);
        played += std::iter::from_fn(|| reorder.next(at)).count();
    }
    assert!(played > 780 && reorder.counters.gaps == 0, "{played} played, {:?}", reorder.counters);
}

#[test]
fn recovered_packets_are_forwarded_and_late_ones_are_not_lost() {
    let held = Key { group: 20, slice: 2 };
    for (after, lost) in [(Some(100), 0), (None, 1)] {
        let mut reorder = buffer();
        let mut arrivals = stream(200);
        for (at, video) in &mut arrivals {
            if video.key == held {
                *at += Span::from_millis(after.unwrap_or(10_000));
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        for (at, video) in arrivals.into_iter().filter(|(at, _)| *at < Time::ZERO + Span::from_secs(5)) {
            reorder.insert(at, &video, true);
            reorder.look(at);
            while reorder.next(at).is_some() {}
        }
        assert_eq!(reorder.take_restored(), [held]);
        assert_eq!(reorder.take_losses(2).1, lost);
        assert_eq!(reorder.counters.gaps, 0);
    }
}

#[test]
fn packets_that_a_viewer_misses_while_it_joins_again_are_gaps() {
    let mut reorder = buffer();
    let sent = stream(400);
    let first = sent[0].1.key.group;
    for (at, video) in sent {
        match video.key.group {
            // The viewer is away.
            40..60 => continue,
            60 if video.key.slice == 0 => {
                reorder.rejoin(4, 1);
                reorder.confirm(u32::MAX);
            }
            _ => {}
        }
        reorder.insert(at, &video, true);
        while reorder.next(at).is_some() {}
    }
    let Counters { delivered, gaps, .. } = reorder.counters;
    let next = reorder.next.unwrap();
    assert_eq!(delivered + gaps, u64::from(next.group - first) * 4 + u64::from(next.slice));
    assert!((80..=88).contains(&gaps), "{gaps}");
    // A server that is started again begins with its first group.
    reorder.rejoin(4, 1);
    reorder.confirm(u32::MAX);
    for (at, video) in stream(40) {
        reorder.insert(at, &video, true);
        while reorder.next(at).is_some() {}
    }
    assert_eq!(reorder.counters.gaps, gaps);
}
