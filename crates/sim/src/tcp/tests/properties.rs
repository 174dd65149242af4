//! TCP under random faults: bytes arrive once, in order, and the connection ends; hostile segments do no harm.

use crate::tcp::pair::{LinkRule, Pair};
use crate::tcp::{Buffer, Config, Congestion, Endpoint, Flags, Segment, State};
use proptest::prelude::*;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

fn congestion() -> impl Strategy<Value = Congestion> {
    prop_oneof![
        Just(Congestion::Reno),
        Just(Congestion::Cubic),
        Just(Congestion::Bbr),
        Just(Congestion::Bbr3),
        Just(Congestion::None)
    ]
}

fn buffer() -> impl Strategy<Value = Buffer> {
    prop_oneof![
        (3_000u32..200_000).prop_map(Buffer::Fixed),
        Just(Buffer::Auto { initial: 65_536, max: 4 << 20 })
    ]
}

fn rule() -> impl Strategy<Value = LinkRule> {
    (1u64..200, 1u64..100, 3usize..300, 0.0..0.15f64, 0.0..0.1f64, 0.0..0.1f64, 1u64..60).prop_map(
        |(mbit, ms, queue, loss, duplicate, reorder, late)| LinkRule {
            rate: Rate(mbit * 500_000),
            delay: Span::from_millis(ms),
            queue,
            loss,
            duplicate,
            reorder,
            reorder_by: Span::from_millis(late),
        },
    )
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_the_connection_closes(
        rules in [rule(), rule()],
        congestion in congestion(),
        buffers in [buffer(), buffer()],
        bytes in [0u64..400_000, 0u64..50_000],
        seed in any::<u64>(),
    ) {
        let config = Config {
            congestion,
            send_buffer: buffers[0],
            receive_buffer: buffers[1],
            ..Config::default()
        };
        let mut pair = Pair::new([config.clone(), config], rules, Seed::root(seed));
        for (end, bytes) in pair.ends.iter_mut().zip(bytes) {
            end.to_write = bytes;
            end.close_after = true;
        }
        pair.run_until(Time(20_000_000_000_000));
        for (which, sent) in bytes.into_iter().enumerate() {
            let end = &pair.ends[which];
            prop_assert_eq!(end.tcp.state(), State::Closed, "end {}: {:?}", which, &end.tcp);
            prop_assert!(end.seen.established && end.seen.peer_closed);
            prop_assert_eq!(end.tcp.written(), sent);
            prop_assert_eq!(end.tcp.transmitted(), sent);
            prop_assert_eq!(end.tcp.acknowledged(), sent);
            prop_assert_eq!(end.seen.acked, sent);
            prop_assert_eq!(pair.ends[1 - which].tcp.delivered_in_order(), sent);
            prop_assert_eq!(pair.ends[1 - which].seen.received, sent);
            prop_assert_eq!(end.tcp.next_timeout(), Time::NEVER);
        }
    }

    #[test]
    fn hostile_segments_do_no_harm(
        segments in prop::collection::vec(segment(), 1..200),
        writes in 0u64..300_000,
        active in any::<bool>(),
        congestion in congestion(),
    ) {
        let config = Config { congestion, ..Config::default() };
        let mut end = if active { Endpoint::active(&config) } else { Endpoint::passive(&config) };
        let mut now = Time(1_000_000);
        end.connect(now);
        end.write(writes);
        let hello = Segment { window: 65_535, flags: Flags::SYN, ..Segment::default() };
        let answer = Segment { flags: if active { Flags::SYN.with(Flags::ACK) } else { Flags::ACK }, ..hello };
        end.on_segment(&config, now, &hello);
        end.poll_transmit(&config, now);
        end.on_segment(&config, now, &answer);
        prop_assert_eq!(end.state(), State::Established);
        for (pause, segment) in segments {
            now += Span::from_micros(pause);
            let before = (end.delivered_in_order(), end.acknowledged());
            let arrival = end.on_segment(&config, now, &segment);
            prop_assert_eq!(end.delivered_in_order(), before.0 + arrival.received);
            prop_assert_eq!(end.acknowledged(), before.1 + arrival.acked);
            prop_assert!(end.acknowledged() <= end.transmitted() && end.transmitted() <= end.written());
            let mut sent = 0;
            while end.poll_transmit(&config, now).is_some() {
                sent += 1;
                prop_assert!(sent < 2_000, "sends without end");
            }
            if end.next_timeout() <= now {
                end.on_timeout(&config, now);
            }
            end.read(&config, now, u64::from(segment.len) / 2);
        }
    }
}

fn segment() -> impl Strategy<Value = (u64, Segment)> {
    let near = prop_oneof![4 => (0u64..40).prop_map(|n| n * 1448), 4 => 0u64..70_000, 1 => any::<u64>()];
    let block = (0u32..60_000, 0u32..60_000);
    let wild = (any::<u32>(), any::<u32>());
    let sack = prop_oneof![3 => [block.clone(), block.clone(), block], 1 => [wild, wild, wild]];
    (
        (0u64..400_000, near.clone(), near),
        prop_oneof![Just(0u32), Just(1448), 0u32..3_000, any::<u32>()],
        prop_oneof![0u32..200_000, any::<u32>()],
        sack,
        (any::<u32>(), any::<u32>()),
        (0u8..=255, prop_oneof![3 => Just(Flags::ACK.0), 1 => any::<u8>()]),
    )
        .prop_map(|((pause, seq, ack), len, window, sack, (stamp, echo), (blocks, flags))| {
            (pause, Segment { seq, ack, len, window, sack, stamp, echo, blocks, flags: Flags(flags) })
        })
}
