//! Whole measurements in simulated time with adversaries in every role.
//!
//! The roles are the real machines, and echo cells are really encrypted.

use std::collections::VecDeque;

use tidegate_control::flashflow::aggregate::Second;
use tidegate_control::flashflow::{MeasurementParameters, Percent, bounds};
use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::bucket::{BucketPlan, TokenBucket};
use tidegate_proto::crypto::ntor::{self, ClientHandshake, HopKeys, RelaySecret};
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{
    Failure, Measurement, Order, Outcome, Output as ToDo, Peer, Timeouts,
};
use tidegate_proto::flashflow::measurer::{Measurer, Output as MeasurerOutput};
use tidegate_proto::flashflow::relay::{Config, Output as RelayOutput, Target};
use tidegate_proto::flashflow::{
    Class, MeasurerEnd, MeasurerId, Message, Open, Pace, Params, Reason, RelayEnd,
};

const COORDINATOR: [u8; 32] = [1; 32];
const TEAM: usize = 3;
const SECONDS: u16 = 4;
/// Above the 10 Mbit/s floor of the background limit, and small enough to be fast.
const CAPACITY: Rate = Rate(16_000_000);
const STEP: Span = Span::from_millis(10);

/// Behaviour that breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cheat {
    None,
    /// The relay invents background.
    LiesAboutBackground,
    /// The relay returns cells as they came.
    EchoesWithoutDecrypting,
    /// The relay decrypts the header but not the rest of this share of cells.
    Skips(f64),
    /// The relay sends each answer twice.
    Replays,
    /// The relay answers before anything was sent.
    AnswersEarly,
    /// The relay's seconds are shorter.
    HurriesItsSeconds,
    /// The first measurer goes silent after two seconds.
    MeasurerStalls,
    /// The first measurer's connection breaks after two seconds.
    MeasurerDies,
    /// The first measurer reports ten times its count.
    MeasurerLies,
    /// The relay agrees and then falls silent.
    RelayStalls,
}

struct Circuit {
    measurer: usize,
    ours: MeasurerEnd,
    theirs: RelayEnd,
    /// Cells in transit to the relay.
    there: VecDeque<Vec<u8>>,
}

struct World {
    now: Time,
    cheat: Cheat,
    target: Target,
    pace: Pace<usize>,
    coordination: Measurement,
    measurers: Vec<Measurer>,
    loading: Vec<Option<TokenBucket>>,
    circuits: Vec<Circuit>,
    /// Clients' traffic in bytes per second, and the part of it that waits.
    background: u64,
    waiting: u64,
    seconds: Vec<Second>,
    result: Option<Result<Outcome, Failure>>,
}

fn keys(n: u8) -> HopKeys {
    let relay = RelaySecret::new([1; 20], [2; 32]);
    let (client, skin) = ClientHandshake::start(*relay.public(), [n + 10; 32]);
    let (keys, reply) = ntor::answer(&relay, &skin, [n + 100; 32]).unwrap();
    assert!(client.finish(&reply).unwrap() == keys);
    keys
}

fn order(check_one_in: u32) -> Order {
    let token = [9; 16];
    let share = |i: usize| Open {
        token,
        seconds: SECONDS,
        sockets: 2,
        rate: CAPACITY.0 + 100_000 * i as u64,
        check_one_in,
        address: "127.0.0.1:9001".parse().unwrap(),
        fingerprint: [4; 32],
        relay: *RelaySecret::new([1; 20], [2; 32]).public(),
    };
    let measurers =
        (0..TEAM).map(|i| MeasurerId { fingerprint: [20 + i as u8; 32], address: None }).collect();
    Order {
        params: Params { token, seconds: SECONDS, background: 25, measurers },
        shares: (0..TEAM).map(share).collect(),
        ratio: Percent::new(25).unwrap(),
        timeouts: Timeouts::default(),
    }
}

fn relay_config() -> Config {
    Config { allowed: true, coordinators: vec![COORDINATOR], ..Config::default() }
}

impl World {
    fn new(cheat: Cheat, background: u64, check_one_in: u32) -> World {
        World {
            now: Time::ZERO,
            cheat,
            target: Target::new(relay_config()),
            pace: Pace::new(CAPACITY),
            coordination: Measurement::new(Time::ZERO, order(check_one_in)),
            measurers: (0..TEAM).map(|_| Measurer::new()).collect(),
            loading: vec![None; TEAM],
            circuits: Vec::new(),
            background,
            waiting: 0,
            seconds: Vec::new(),
            result: None,
        }
    }

    fn run(mut self) -> (Result<Outcome, Failure>, Vec<Second>) {
        self.coordination.connected(self.now, Peer::Relay);
        (0..TEAM).for_each(|i| self.coordination.connected(self.now, Peer::Measurer(i)));
        while self.result.is_none() {
            self.now += STEP;
            assert!(self.now < Time::ZERO + Span::from_secs(120), "every measurement ends");
            self.coordination.timeout(self.now);
            if self.cheat != Cheat::RelayStalls {
                self.target.timeout(self.now);
            }
            for i in 0..TEAM {
                let silent = i == 0 && self.cheat == Cheat::MeasurerStalls && self.seconds.len() >= 2;
                if !silent {
                    self.measurers[i].timeout(self.now);
                }
            }
            if self.cheat == Cheat::MeasurerDies && self.seconds.len() == 2 {
                self.coordination.lost(Peer::Measurer(0));
            }
            self.load();
            self.forward();
            self.talk();
        }
        (self.result.expect("the loop ended"), self.seconds)
    }

    /// Delivers messages until all queues are empty.
    fn talk(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(output) = self.coordination.poll() {
                quiet = false;
                match output {
                    ToDo::Send(Peer::Relay, message) => {
                        self.target.message(self.now, 1, &COORDINATOR, &message);
                    }
                    ToDo::Send(Peer::Measurer(i), message) => self.measurers[i].message(self.now, message),
                    ToDo::Second(_, record) => {
                        self.seconds.push(record.second(Percent::new(25).unwrap()));
                    }
                    ToDo::Done(result) => self.result = Some(result),
                }
            }
            while let Some(output) = self.target.poll() {
                quiet = false;
                match output {
                    RelayOutput::Send(_, mut message) => {
                        if let Message::Background { sent, received, second } = &mut message {
                            if self.cheat == Cheat::LiesAboutBackground {
                                (*sent, *received) = (u32::MAX, u32::MAX);
                            }
                            if self.cheat == Cheat::HurriesItsSeconds {
                                *second = 1;
                            }
                        }
                        self.coordination.message(self.now, Peer::Relay, message.clone());
                        if self.cheat == Cheat::HurriesItsSeconds
                            && let Message::Background { .. } = message
                        {
                            let next = Message::Background { second: 2, sent: 0, received: 0 };
                            self.coordination.message(self.now, Peer::Relay, next);
                        }
                    }
                    RelayOutput::Started(ratio) => self.pace.measuring(self.now, ratio),
                    RelayOutput::Ended => self.pace.idle(),
                    RelayOutput::Close(_) | RelayOutput::Expect(_) => {}
                }
            }
            for i in 0..TEAM {
                while let Some(output) = self.measurers[i].poll() {
                    quiet = false;
                    match output {
                        MeasurerOutput::Send(mut message) => {
                            if let Message::Count { bytes, .. } = &mut message
                                && i == 0
                                && self.cheat == Cheat::MeasurerLies
                            {
                                *bytes *= 10;
                            }
                            self.coordination.message(self.now, Peer::Measurer(i), message);
                        }
                        MeasurerOutput::Connect(open) => self.connect(i, &open),
                        MeasurerOutput::Load => {
                            let bytes = order(1).shares[i].rate / 8;
                            self.loading[i] = Some(TokenBucket::new(BucketPlan {
                                rate_bytes_per_s: bytes,
                                burst_bytes: bytes / 10,
                                refill_every: STEP,
                                drop_fractions: false,
                            }));
                        }
                        MeasurerOutput::Disconnect => {
                            self.loading[i] = None;
                            self.circuits.retain(|circuit| circuit.measurer != i);
                        }
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn connect(&mut self, i: usize, open: &Open) {
        for _ in 0..open.sockets {
            if self.target.admits(&[20 + i as u8; 32], &open.token) {
                let circ = 1 + self.circuits.len() as u32;
                let keys = keys(circ as u8);
                self.circuits.push(Circuit {
                    measurer: i,
                    ours: MeasurerEnd::new(circ, &keys, &[circ as u8; 32], open.check_one_in),
                    theirs: RelayEnd::new(circ, &keys),
                    there: VecDeque::new(),
                });
                self.measurers[i].opened(self.now);
            } else {
                self.measurers[i].not_opened(self.now);
            }
        }
    }

    /// Measurers send as fast as their rate and a window of 64 cells per circuit allow.
    fn load(&mut self) {
        for (n, circuit) in self.circuits.iter_mut().enumerate() {
            let Some(bucket) = &mut self.loading[circuit.measurer] else { continue };
            while circuit.ours.in_flight() < 64 && bucket.available(self.now) >= CELL as u64 {
                bucket.take(CELL as u64);
                let mut cell = vec![0; CELL];
                circuit.ours.fill(&mut cell);
                if circuit.there.is_empty() {
                    self.pace.request(Class::Measurement, n, CELL as u64);
                }
                circuit.there.push_back(cell);
            }
        }
    }

    /// The relay forwards what its pace grants.
    fn forward(&mut self) {
        self.waiting = (self.waiting + self.background * STEP.0 / 1_000_000_000).min(1_000_000);
        if self.waiting >= CELL as u64 {
            self.pace.request(Class::Background, usize::MAX, self.waiting / CELL as u64 * CELL as u64);
        }
        let mut forwarded = Vec::new();
        while let Some(grant) = self.pace.poll(self.now) {
            match grant.class {
                Class::Background => {
                    self.waiting -= grant.bytes;
                    self.target.background(grant.bytes, grant.bytes);
                }
                Class::Measurement => {
                    if !self.target.echo(self.now) {
                        continue;
                    }
                    let Some(circuit) = self.circuits.get_mut(grant.who) else { continue };
                    let Some(cell) = circuit.there.pop_front() else { continue };
                    if !circuit.there.is_empty() {
                        self.pace.request(Class::Measurement, grant.who, CELL as u64);
                    }
                    forwarded.push((grant.who, cell));
                }
            }
        }
        self.pace.withdraw(Class::Background, usize::MAX);
        for (who, cell) in forwarded {
            self.answer(who, cell);
        }
    }

    fn answer(&mut self, who: usize, mut cell: Vec<u8>) {
        let circuit = &mut self.circuits[who];
        let came = cell.clone();
        circuit.theirs.answer(&mut cell).unwrap();
        let mut answers = vec![cell];
        match self.cheat {
            Cheat::EchoesWithoutDecrypting => answers = vec![came],
            // The choice of skipped cells does not matter: the relay does not know the picks.
            Cheat::Skips(share) if f64::from(answers[0][100]) < share * 256.0 => {
                answers[0][16..].copy_from_slice(&came[16..]);
            }
            Cheat::Replays => answers.push(answers[0].clone()),
            Cheat::AnswersEarly => answers = vec![answers[0].clone(); 200],
            _ => {}
        }
        for answer in answers {
            let measurer = &mut self.measurers[circuit.measurer];
            match circuit.ours.receive(&answer) {
                Ok(checked) => measurer.echoed(CELL as u64, checked),
                Err(_) => measurer.failed(Reason::WrongEcho),
            }
        }
    }
}

fn error(estimate: Rate) -> f64 {
    estimate.0 as f64 / CAPACITY.0 as f64 - 1.0
}

#[test]
fn an_honest_relay_is_measured_right_with_and_without_background() {
    for background in [0, 100_000, 5_000_000] {
        let (result, seconds) = World::new(Cheat::None, background, 125).run();
        let outcome = result.unwrap();
        assert!(error(outcome.estimate).abs() < 0.02, "{:?} with {background}", outcome.estimate);
        assert_eq!(outcome.seconds.len(), usize::from(SECONDS));
        assert!(outcome.checked > 30);
        // The first second has tor's burst.
        assert!(seconds[0].total() > 3 * seconds[3].total() / 2);
        for second in &seconds[1..] {
            let share = second.background as f64 / second.total() as f64;
            let expected = (background as f64 * 8.0 / CAPACITY.0 as f64).min(0.25);
            assert!((share - expected).abs() < 0.02, "{share} of background, {expected} expected");
        }
    }
}

#[test]
fn the_estimate_is_conclusive_with_enough_measurers_only() {
    let p = MeasurementParameters::default();
    let outcome = World::new(Cheat::None, 0, 125).run().0.unwrap();
    let verdict = p.judge(outcome.estimate, CAPACITY, outcome.allocated);
    assert!(matches!(verdict, tidegate_control::flashflow::Verdict::Conclusive(_)), "{verdict:?}");
    let scarce = p.judge(outcome.estimate, CAPACITY, Rate(CAPACITY.0 * 2));
    assert!(matches!(scarce, tidegate_control::flashflow::Verdict::Again { .. }));
}

#[test]
fn a_lie_about_background_gains_at_most_a_third() {
    let outcome = World::new(Cheat::LiesAboutBackground, 0, 125).run().0.unwrap();
    let gain = 1.0 + error(outcome.estimate);
    let bound = bounds::inflation(Percent::new(25).unwrap());
    assert!(gain > 1.3 && gain <= bound * 1.01, "{gain}, bound {bound}");
}

#[test]
fn whoever_cheats_or_fails_ends_the_measurement() {
    let relay = Some(Peer::Relay);
    for (cheat, reason, by) in [
        (Cheat::EchoesWithoutDecrypting, Reason::WrongEcho, Some(Peer::Measurer(0))),
        (Cheat::Replays, Reason::WrongEcho, Some(Peer::Measurer(0))),
        (Cheat::AnswersEarly, Reason::WrongEcho, Some(Peer::Measurer(0))),
        (Cheat::HurriesItsSeconds, Reason::Clock, relay),
        (Cheat::RelayStalls, Reason::Timeout, relay),
        (Cheat::MeasurerStalls, Reason::Timeout, Some(Peer::Measurer(0))),
        (Cheat::MeasurerDies, Reason::Lost, Some(Peer::Measurer(0))),
        (Cheat::MeasurerLies, Reason::Protocol, Some(Peer::Measurer(0))),
    ] {
        // With every second cell checked, a wrong cell is found within a few buckets.
        let (result, _) = World::new(cheat, 0, 2).run();
        assert_eq!(result, Err(Failure { reason, by }), "{cheat:?}");
    }
}

#[test]
fn skipping_work_on_a_tenth_of_the_cells_does_not_pass() {
    let (result, _) = World::new(Cheat::Skips(0.1), 0, 125).run();
    assert!(matches!(result, Err(Failure { reason: Reason::WrongEcho, .. })), "{result:?}");
}

#[test]
fn the_third_measurement_of_a_day_is_refused() {
    let mut target = Target::new(relay_config());
    for (hour, fine) in [(0, true), (5, true), (23, false), (24, true)] {
        let mut world = World::new(Cheat::None, 0, 125);
        world.target = target;
        world.now = Time::ZERO + Span::from_secs(hour * 3600);
        world.coordination = Measurement::new(world.now, order(125));
        world.coordination.connected(world.now, Peer::Relay);
        (0..TEAM).for_each(|i| world.coordination.connected(world.now, Peer::Measurer(i)));
        world.talk();
        let refused = Err(Failure { reason: Reason::TooOften, by: Some(Peer::Relay) });
        assert_eq!(world.result == Some(refused), !fine, "hour {hour}: {:?}", world.result);
        // A measurement without load does not count.
        world.target.echo(world.now);
        world.coordination.stop();
        world.talk();
        target = world.target;
    }
}
