//! Messages of streams in every phase of a stream: only those that fit the phase are carried out, and others end the
//! stream or the circuit.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_proto::cell::{Cell, CircId, Command, EndReason, StreamId};
use tidegate_proto::client::Client;
use tidegate_proto::crypto::layer::{Body, Layer};
use tidegate_proto::crypto::{Encrypted, Target};
use tidegate_proto::links::{ChannelId, Limits};
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};

use crate::{hostile, roles};

/// Relay commands (tor-spec, "Relay cells"; proposal 329).
const BEGIN: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const CONNECTED: u8 = 4;
const SENDME: u8 = 5;
const TRUNCATED: u8 = 9;
const DROP: u8 = 10;
const RESOLVE: u8 = 11;
const RESOLVED: u8 = 12;
const EXTENDED2: u8 = 15;
const LINKED: u8 = 20;
const XOFF: u8 = 43;
const XON: u8 = 44;
const LEAVE: u8 = 241;
const COMMANDS: [u8; 15] = [
    BEGIN, DATA, END, CONNECTED, CONNECTED, SENDME, TRUNCATED, DROP, RESOLVE, RESOLVED, EXTENDED2, LINKED,
    XOFF, XON, LEAVE,
];

/// Valid contents of a message with this command.
fn contents(command: u8) -> Vec<u8> {
    match command {
        BEGIN => b"192.0.2.7:80\0".to_vec(),
        RESOLVE => b"a.example\0".to_vec(),
        DATA => b"data".to_vec(),
        END => vec![EndReason::DONE.0],
        RESOLVED => vec![4, 4, 192, 0, 2, 7, 0, 0, 0, 60],
        EXTENDED2 => vec![0, 1, 7],
        LINKED => [&[1][..], &[7; 32], &[0; 16], &[1]].concat(),
        XOFF => vec![0],
        XON => vec![0; 5],
        LEAVE => vec![7; 8],
        _ => Vec::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Connecting,
    Resolving,
    Connected,
    Closed,
}

/// Required effect of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Nothing,
    Connects,
    Resolves,
    Delivers,
    Ends(EndReason),
    EndsCircuit,
}

/// Required effect of an exit's message at the client. A fresh stream has sent no data, so every SENDME is early.
fn expected(phase: Option<Phase>, command: u8, stream: u16) -> Effect {
    let wrong = Effect::Ends(EndReason::PROTOCOL);
    match (command, phase) {
        (DROP, _) => Effect::Nothing,
        (BEGIN | RESOLVE | TRUNCATED | EXTENDED2 | LINKED | LEAVE, _) => Effect::EndsCircuit,
        (SENDME, _) if stream == 0 => Effect::EndsCircuit,
        (_, None) => Effect::EndsCircuit,
        (_, Some(Phase::Closed)) => Effect::Nothing,
        (END, _) => Effect::Ends(EndReason::DONE),
        (CONNECTED, Some(Phase::Connecting)) => Effect::Connects,
        (RESOLVED, Some(Phase::Resolving)) => Effect::Resolves,
        (DATA, Some(Phase::Connected)) => Effect::Delivers,
        (SENDME, Some(Phase::Connected)) => Effect::EndsCircuit,
        // A circuit with fixed windows drops XOFF and XON, as tor does.
        (XOFF | XON, Some(Phase::Connected)) => Effect::Nothing,
        _ => wrong,
    }
}

/// A client with a circuit of one hop, and its exit.
struct Ends {
    client: Client<Encrypted>,
    key: CircuitKey,
    channel: ChannelId,
    circ: CircId,
    backward: Layer,
    streams: BTreeMap<u16, Phase>,
}

impl Ends {
    fn new() -> Ends {
        let (client, key, channel, circ, backward) = roles::built();
        Ends { client, key, channel, circ, backward, streams: BTreeMap::new() }
    }

    fn open(&mut self, lookup: bool) {
        let (target, phase) = match lookup {
            true => (Target::Resolve("a.example".into()), Phase::Resolving),
            false => (Target::parse("192.0.2.7:80", 0).unwrap(), Phase::Connecting),
        };
        let stream = self.client.open(Time::ZERO, self.key, target).expect("the circuit is there").stream;
        self.streams.insert(stream.0, phase);
    }

    /// The exit sends a message. Returns the outputs that are not about connections.
    fn says(&mut self, command: u8, stream: u16) -> Vec<Output<Encrypted>> {
        let (mut body, data) = ([0; 509], contents(command));
        body[0] = command;
        body[3..5].copy_from_slice(&stream.to_be_bytes());
        body[9..11].copy_from_slice(&(data.len() as u16).to_be_bytes());
        body[11..11 + data.len()].copy_from_slice(&data);
        self.backward.seal(&mut body);
        let cell = Cell { circ: self.circ, command: Command::Relay, body: Body::from(body) };
        self.client.cell(Time::ZERO, self.channel, cell);
        let own = |output: &Output<Encrypted>| {
            !matches!(output, Output::Flush(_) | Output::CloseChannel(_) | Output::Package(..))
        };
        std::iter::from_fn(|| self.client.poll()).filter(own).collect()
    }

    /// Notes what a message did. Returns false if the circuit is gone.
    fn check(&mut self, command: u8, stream: u16) -> Result<bool, TestCaseError> {
        let key = StreamKey { circuit: self.key, stream: StreamId(stream) };
        let phase = self.streams.get(&stream).copied();
        let said = self.says(command, stream);
        match expected(phase, command, stream) {
            Effect::Nothing => prop_assert_eq!(said, []),
            Effect::Connects => {
                prop_assert_eq!(said, [Output::StreamConnected(key)]);
                self.streams.insert(stream, Phase::Connected);
            }
            Effect::Resolves => {
                prop_assert_eq!(said, [Output::Resolved(key, contents(RESOLVED).into())]);
                self.streams.insert(stream, Phase::Closed);
            }
            Effect::Delivers => prop_assert_eq!(said, [Output::Deliver(key, 4, b"data"[..].into(), 1)]),
            Effect::Ends(reason) => {
                prop_assert_eq!(said, [Output::StreamClosed(key, reason)]);
                self.streams.insert(stream, Phase::Closed);
            }
            Effect::EndsCircuit => {
                prop_assert_eq!(said, [Output::CircuitClosed(self.key)], "{} {:?}", command, phase);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[test]
fn a_stream_gets_only_the_answer_that_it_asked_for() {
    for (lookup, answer) in [(true, CONNECTED), (false, RESOLVED), (true, DATA), (false, DATA)] {
        let mut ends = Ends::new();
        ends.open(lookup);
        let key = StreamKey { circuit: ends.key, stream: StreamId(1) };
        assert_eq!(
            ends.says(answer, 1),
            [Output::StreamClosed(key, EndReason::PROTOCOL)],
            "{lookup} {answer}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// An exit sends valid messages in any order, among streams that the client opens and closes.
    #[test]
    fn a_client_carries_out_what_fits_a_streams_phase(events in vec((0u8..20, 0usize..15, 0u16..6), 1..40)) {
        let mut ends = Ends::new();
        for (kind, command, stream) in events {
            match kind {
                0..4 => ends.open(kind % 2 == 0),
                4 => {
                    let open = ends.streams.get(&stream).is_some_and(|phase| *phase != Phase::Closed);
                    let key = StreamKey { circuit: ends.key, stream: StreamId(stream) };
                    ends.client.stream_ended(Time::ZERO, key);
                    let closed = std::iter::from_fn(|| ends.client.poll())
                        .any(|output| output == Output::StreamClosed(key, EndReason::DONE));
                    prop_assert_eq!(closed, open);
                    ends.streams.entry(stream).and_modify(|phase| *phase = Phase::Closed);
                }
                _ => {
                    if !ends.check(COMMANDS[command], stream)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A client sends valid messages in any order, while the exit's driver answers in any order.
    #[test]
    fn an_exit_carries_out_what_fits_a_streams_phase(events in vec((0u8..20, 0usize..15, 0u16..4), 1..60)) {
        let (mut relay, mut client) = hostile::with_client(Limits::default());
        let mut streams = BTreeMap::<StreamKey, Phase>::new();
        for (kind, command, stream) in events {
            let chosen = streams.keys().nth(usize::from(stream)).copied();
            match (kind, chosen) {
                (0..3, Some(key)) => {
                    relay.stream_connected(Time::ZERO, key);
                    streams.entry(key).and_modify(|phase| if *phase == Phase::Connecting {
                        *phase = Phase::Connected;
                    });
                }
                (3, Some(key)) => relay.resolved(Time::ZERO, key, contents(RESOLVED).into()),
                (4, Some(key)) => relay.stream_ended(Time::ZERO, key),
                _ => {
                    let command = COMMANDS[command];
                    client.says(&mut relay, Time::ZERO, false, (command, stream, &contents(command)));
                }
            }
            let said: Vec<_> = std::iter::from_fn(|| relay.poll()).collect();
            for output in said {
                match output {
                    Output::Connect(key, target) => {
                        let lookup = matches!(target, Target::Resolve(_));
                        let phase = if lookup { Phase::Resolving } else { Phase::Connecting };
                        prop_assert!(key.stream.0 != 0 && streams.insert(key, phase).is_none());
                    }
                    Output::Deliver(key, ..) => {
                        // Clients may send data before CONNECTED (tor-spec, optimistic data).
                        let phase = streams.get(&key);
                        prop_assert!(matches!(phase, Some(Phase::Connecting | Phase::Connected)), "{:?}", phase);
                    }
                    Output::StreamClosed(key, _) => prop_assert!(streams.remove(&key).is_some()),
                    Output::CircuitEnded(..) => {
                        // Its streams are closed with it, after this output.
                        prop_assert_eq!(relay.circuits(), 0);
                    }
                    _ => {}
                }
            }
            if relay.circuits() == 0 {
                prop_assert!(streams.is_empty(), "{streams:?}");
                return Ok(());
            }
        }
    }
}
