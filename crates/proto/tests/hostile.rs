//! A neighbour that sends what it likes and reads nothing: what a relay holds for it is bounded.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_control::units::Time;
use tidegate_proto::cell::{CELL_BYTES, Cell, CircId, Command, Nonce};
use tidegate_proto::crypto::encrypted::{Body, Encrypted};
use tidegate_proto::crypto::ntor::{ClientHandshake, RelaySecret};
use tidegate_proto::links::Config;
use tidegate_proto::machine::Machine as _;
use tidegate_proto::node::{Node as _, Output};
use tidegate_proto::relay::Relay;

const CIRCUITS: u32 = 32;
const UNREAD: u32 = 64;
/// Cells that a neighbour sends.
const FLOOD: u32 = 3_000;

fn body(bytes: &[u8]) -> Body {
    let mut body = [0; 509];
    body[..bytes.len()].copy_from_slice(bytes);
    Body(Box::new(body))
}

/// Bytes that a relay holds at most while `next` makes the cells of a neighbour that reads nothing.
fn most_held(mut next: impl FnMut(u32) -> (u32, Command, Body)) -> u64 {
    let secret = RelaySecret::new([1; 20], [2; 32]);
    let onion = Encrypted::new(Some(secret), BTreeMap::new(), [3; 32]);
    let config = Config { circuits_per_channel: CIRCUITS, unread_limit: UNREAD, ..Config::default() };
    let mut relay = Relay::new(onion, config);
    let channel = relay.channel_accepted(None);
    let mut most = 0;
    for n in 0..FLOOD {
        let (circ, command, body) = next(n);
        relay.cell(Time(u64::from(n)), channel, Cell { circ: CircId(circ), command, body });
        let (queued, buffered) = relay.waiting();
        most = most.max(queued * u64::from(CELL_BYTES) + buffered);
        let mut closed = false;
        while let Some(output) = relay.poll() {
            closed |= matches!(output, Output::CloseChannel(id) if id == channel);
        }
        if closed {
            assert_eq!(relay.waiting(), (0, 0), "with the channel goes what waited for it");
            assert_eq!(relay.circuits(), 0);
            break;
        }
    }
    most
}

/// An answer for each circuit, a full output buffer, and what may be unread beyond it.
fn bound() -> u64 {
    let buffer = u64::from(Config::default().output_buffer.high_bytes);
    buffer + u64::from(CIRCUITS + UNREAD + 2) * u64::from(CELL_BYTES)
}

const COMMANDS: [Command; 7] = [
    Command::Create,
    Command::Created,
    Command::Relay,
    Command::Destroy,
    Command::Leave(Nonce([7; 8])),
    Command::Join(Nonce([7; 8])),
    Command::Congested,
];

#[test]
fn every_command_by_itself_is_bounded() {
    for command in COMMANDS {
        // As the opener of the channel has to, with the highest bit; another circuit each.
        let held = most_held(|n| (1 << 31 | (n + 1), command, body(&n.to_be_bytes())));
        assert!(held <= bound(), "{command:?}: {held}");
    }
}

#[test]
fn circuits_that_are_begun_and_broken_are_bounded() {
    let keys = *RelaySecret::new([1; 20], [2; 32]).public();
    let held = most_held(|n| {
        let circ = 1 << 31 | (n / 2 + 1);
        if n % 2 == 0 {
            let (_, skin) = ClientHandshake::start(keys, [n as u8; 32]);
            (circ, Command::Create, body(&skin))
        } else {
            // No message comes out of this.
            (circ, Command::Relay, body(&[9; 509]))
        }
    });
    assert!(held <= bound(), "{held}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_is_bounded(seed: u64, circuits in 1u32..100) {
        let keys = *RelaySecret::new([1; 20], [2; 32]).public();
        let mut random = tidegate_control::random::Seed::root(seed).random();
        let held = most_held(|n| {
            let circ = 1 << 31 | (random.below(circuits as usize) as u32 + 1);
            let command = COMMANDS[random.below(COMMANDS.len())];
            let (_, skin) = ClientHandshake::start(keys, [n as u8; 32]);
            let honest = command == Command::Create && random.chance(0.7);
            (circ, command, if honest { body(&skin) } else { body(&random.bits().to_be_bytes()) })
        });
        prop_assert!(held <= bound(), "{}", held);
    }
}
