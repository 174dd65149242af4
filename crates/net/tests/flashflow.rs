//! Measurements over real sockets on loopback, with all roles in this process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_control::flashflow::Percent;
use tidegate_control::units::{Rate, Span};
use tidegate_net::clock;
use tidegate_net::flashflow::measurer::{self, MeasurerOptions};
use tidegate_net::flashflow::{Limits, MeasuredRelay, Unmeasured, measure};
use tidegate_net::identity::{Contact, Identity, fill};
use tidegate_net::live::relay::{Measurement, RelayConfig, run};
use tidegate_proto::crypto::Router;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::flashflow::coordinator::{Failure, Order, Outcome, Peer, Timeouts};
use tidegate_proto::flashflow::relay::Config;
use tidegate_proto::flashflow::{MeasurerId, Open, Params, Reason};
use tidegate_proto::links;
use tidegate_proto::transport::Transport;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::a_relay;
use crate::one_hop::OneHop;
use crate::pauses::Pauses;

/// Runs a role on its own thread and returns its listening address.
fn start<F: Future>(role: impl FnOnce(TcpListener) -> F + Send + 'static) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            role(listener).await;
        }));
    });
    told.recv().unwrap()
}

struct Team {
    coordinator: Identity,
    relay: Contact,
    measurers: Vec<Contact>,
    relay_identity: Arc<Identity>,
}

fn team(measurers: usize, rate: Rate) -> Team {
    let coordinator = Identity::generate();
    let allowed = coordinator.fingerprint();
    let relay_identity = Arc::new(Identity::generate());
    let identity = relay_identity.clone();
    let address = start(move |listener| async move {
        let config = Config { allowed: true, coordinators: vec![allowed], ..Config::default() };
        let relay = MeasuredRelay::new(identity, rate, config, Limits::default(), BTreeMap::new());
        relay.unwrap().serve(listener).await;
    });
    let relay = Contact { address, fingerprint: relay_identity.fingerprint() };
    let measurers = (0..measurers)
        .map(|_| {
            let identity = Arc::new(Identity::generate());
            let fingerprint = identity.fingerprint();
            let options = MeasurerOptions { coordinators: vec![allowed], workers: 1, rate: u64::MAX };
            let address = start(move |listener| measurer::serve(listener, identity, options));
            Contact { address, fingerprint }
        })
        .collect();
    Team { coordinator, relay, measurers, relay_identity }
}

impl Team {
    fn order(&self, seconds: u16, rate: u64) -> Order {
        let token = tidegate_net::identity::random();
        let share = Open {
            token,
            seconds,
            sockets: 4,
            rate,
            check_one_in: 125,
            address: self.relay.address,
            fingerprint: self.relay.fingerprint,
            relay: self.relay_identity.relay_public(),
        };
        let ids = self.measurers.iter().map(|m| MeasurerId { fingerprint: m.fingerprint, address: None });
        Order {
            params: Params { token, seconds, background: 25, measurers: ids.collect() },
            shares: vec![share; self.measurers.len()],
            ratio: Percent::new(25).unwrap(),
            timeouts: Timeouts { connect: Span::from_secs(5), ..Timeouts::default() },
        }
    }

    fn measure(&self, coordinator: &Identity, order: Order) -> Result<Outcome, Failure> {
        self.measure_with_cause(coordinator, order).map_err(|Unmeasured { failure, .. }| failure)
    }

    fn measure_with_cause(&self, coordinator: &Identity, order: Order) -> Result<Outcome, Unmeasured> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_keep, stop) = watch::channel(false);
        runtime.block_on(measure(coordinator, self.relay, &self.measurers, order, stop, |_, _| {}))
    }
}

/// Repeats a measurement with a fresh team until its result is high enough, or 5 attempts were too low. Returns the last result.
///
/// A pause of the machine empties seconds of the short windows here, which lowers an estimate. An attempt with a pause shows
/// nothing about the lower bound, and may fail because a peer seems lost. It counts only after a minute.
fn until_high<T>(mut attempt: impl FnMut() -> Result<T, Failure>, high: impl Fn(&T) -> bool) -> T {
    let end = clock::now() + Span::from_secs(60);
    let mut low = 0;
    loop {
        let pauses = Pauses::watch();
        let result = attempt();
        let paused = pauses.lost() > Span::from_millis(200) && clock::now() < end;
        match result {
            Err(failure) => assert!(paused, "{failure:?}"),
            Ok(result) => {
                low += u32::from(!paused);
                if high(&result) || low == 5 {
                    return result;
                }
            }
        }
    }
}

/// A failure names the peer, and what is wrong in the coordinator's configuration or at the peer.
#[test]
fn wrong_keys_differ_from_machines_that_are_off() {
    let mut team = team(1, Rate::UNLIMITED);
    let (relay, measurer) = (team.relay, team.measurers[0]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fails = |team: &Team, order: Order| {
        let Unmeasured { failure, cause } = team.measure_with_cause(&team.coordinator, order).unwrap_err();
        (failure.reason, failure.by, cause.unwrap_or_default())
    };
    let off = |cause: &str| cause.contains("nothing listens at") && cause.contains(&closed.to_string());

    team.relay.fingerprint = [1; 32];
    let (reason, by, cause) = fails(&team, team.order(1, 1_000_000));
    assert_eq!((reason, by), (Reason::Lost, Some(Peer::Relay)));
    assert!(cause.contains("another fingerprint") && cause.contains(&relay.address.to_string()), "{cause}");
    team.relay = Contact { address: closed, ..relay };
    let (reason, by, cause) = fails(&team, team.order(1, 1_000_000));
    assert_eq!((reason, by, off(&cause)), (Reason::Lost, Some(Peer::Relay), true), "{cause}");
    team.relay = relay;

    team.measurers[0].fingerprint = [1; 32];
    let (reason, by, cause) = fails(&team, team.order(1, 1_000_000));
    assert_eq!((reason, by), (Reason::Lost, Some(Peer::Measurer(0))));
    assert!(cause.contains("another fingerprint"), "{cause}");
    team.measurers[0] = Contact { address: closed, ..measurer };
    let (reason, by, cause) = fails(&team, team.order(1, 1_000_000));
    assert_eq!((reason, by, off(&cause)), (Reason::Lost, Some(Peer::Measurer(0)), true), "{cause}");
    team.measurers[0] = measurer;

    let mut order = team.order(1, 1_000_000);
    order.shares[0].relay.onion = [9; 32];
    let (reason, by, _) = fails(&team, order);
    assert_eq!((reason, by), (Reason::WrongKey, Some(Peer::Relay)));
    assert!(reason.to_string().contains("`onion-key`"));
    assert!(team.measure(&team.coordinator, team.order(1, 1_000_000)).is_ok(), "the relay is free again");
}

/// With a part of the rate, the result would be too low without a sign of it.
#[test]
fn a_measurer_with_less_rate_than_asked_is_busy() {
    let mut team = team(1, Rate::UNLIMITED);
    let identity = Arc::new(Identity::generate());
    let fingerprint = identity.fingerprint();
    let coordinators = vec![team.coordinator.fingerprint()];
    let options = MeasurerOptions { coordinators, workers: 1, rate: 4_000_000 };
    let address = start(move |listener| measurer::serve(listener, identity, options));
    team.measurers = vec![Contact { address, fingerprint }];
    let failure = team.measure(&team.coordinator, team.order(1, 4_000_001)).unwrap_err();
    assert_eq!(failure, Failure { reason: Reason::Busy, by: Some(Peer::Measurer(0)) });
    team.measure(&team.coordinator, team.order(1, 4_000_000)).unwrap();
}

#[test]
fn a_limited_relay_is_measured_over_tls() {
    let attempt = || {
        let team = team(2, Rate(40_000_000));
        let outcome = team.measure(&team.coordinator, team.order(3, 60_000_000))?;
        assert!(outcome.estimate.0 <= 50_000_000, "{outcome:?}");
        Ok((team, outcome))
    };
    let (team, outcome) = until_high(attempt, |(_, outcome)| outcome.estimate.0 >= 30_000_000);
    // Accuracy is tested by experiments; here the estimate must be roughly right.
    assert!((30_000_000..=50_000_000).contains(&outcome.estimate.0), "{outcome:?}");
    assert_eq!(outcome.seconds.len(), 3);
    assert!(outcome.checked > 0);

    let stranger = Identity::generate();
    // All peers refuse; which refusal comes first is random.
    let result = team.measure(&stranger, team.order(1, 1_000_000));
    let refused = Failure { reason: Reason::Lost, by: Some(Peer::Measurer(0)) };
    let also = Failure { by: Some(Peer::Measurer(1)), ..refused };
    match result {
        Err(Failure { reason: Reason::NotAllowed, .. }) => {}
        other => assert!(other == Err(refused) || other == Err(also), "{other:?}"),
    }

    assert!(team.measure(&team.coordinator, team.order(1, 60_000_000)).is_ok());
    let third = team.measure(&team.coordinator, team.order(1, 60_000_000));
    assert_eq!(third, Err(Failure { reason: Reason::TooOften, by: Some(Peer::Relay) }));
}

const RATE: u64 = 40_000_000;

/// Measures a relay of that rate while a user downloads. Returns the outcome and the user's bits meanwhile.
fn measured_with_a_user() -> Result<(Outcome, u64), Failure> {
    let mut team = team(2, Rate(RATE));
    let (identity, allowed) = (team.relay_identity.clone(), team.coordinator.fingerprint());
    let keys = RouterKeys::generate(&mut fill);
    let (fingerprint, ed25519, onion) = (keys.fingerprint(), Some(keys.ed25519()), keys.onion());
    team.relay.address = start(move |listener| async move {
        let permissions = Config { allowed: true, coordinators: vec![allowed], ..Config::default() };
        let settings = RelayConfig {
            nickname: "measured".into(),
            config: links::Config { bandwidth: RATE as f64 / 8.0, ..links::Config::default() },
            exit: a_relay::open_exit(None),
            measurement: Some(Measurement { identity, permissions }),
            ..a_relay::settings(keys, listener.local_addr().unwrap())
        };
        let (_orders, taken) = mpsc::channel(1);
        run(settings, vec![listener], taken, &|_| {}).await.unwrap();
    });
    let carried = Arc::<AtomicU64>::default();
    let (count, address) = (carried.clone(), team.relay.address);
    let over = Arc::<AtomicBool>::default();
    let ends = over.clone();
    let server = start(move |listener| async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        while !ends.load(Ordering::Relaxed)
            && let Ok(written) = tcp.write(&[7; 16 << 10]).await
        {
            count.fetch_add(written as u64, Ordering::Relaxed);
        }
    });
    start(move |_| async move {
        let client = OneHop::new(Router { address, fingerprint, ed25519 }, Transport::Vanilla);
        assert_eq!(client.builds(onion).await, [true; 2]);
        let circuit = *client.ends.borrow().keys().next().unwrap();
        client.node.with(|node, now| node.open(now, circuit, server.into())).unwrap();
        std::future::pending::<()>().await;
    });
    while carried.load(Ordering::Relaxed) < 2_000_000 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let before = carried.load(Ordering::Relaxed);
    let outcome = team.measure(&team.coordinator, team.order(3, 60_000_000));
    let bits = (carried.load(Ordering::Relaxed) - before) * 8;
    // The next attempt has the machine for itself.
    over.store(true, Ordering::Relaxed);
    Ok((outcome?, bits))
}

/// A relay of the overlay serves a user's download while it is measured, on the same port and under one rate limit.
#[test]
fn a_relay_is_measured_while_it_carries_a_user() {
    let counts =
        |outcome: &Outcome| outcome.seconds.iter().all(|second| second.sent.min(second.received) > 0);
    let attempt = || {
        let (outcome, bits) = measured_with_a_user()?;
        assert!(outcome.estimate.0 <= 50_000_000, "{outcome:?}");
        Ok((outcome, bits))
    };
    let (outcome, bits) = until_high(attempt, |(outcome, bits)| {
        outcome.estimate.0 >= 30_000_000 && *bits > 3 * RATE / 20 && counts(outcome)
    });
    // The user gets about a quarter of the rate meanwhile, and the estimate counts it.
    assert!((30_000_000..=50_000_000).contains(&outcome.estimate.0), "{outcome:?}");
    assert!(bits > 3 * RATE / 20, "{bits} bits for the user");
    assert!(counts(&outcome), "an exit's bytes from servers count, too: {outcome:?}");
}

/// Measures two relays, of 10 and 20 Mbit/s, with the same measurers at the same time. Returns the estimates.
fn measured_at_once() -> Result<[u64; 2], Failure> {
    let team = team(2, Rate(10_000_000));
    let other = Arc::new(Identity::generate());
    let allowed = team.coordinator.fingerprint();
    let identity = other.clone();
    let address = start(move |listener| async move {
        let config = Config { allowed: true, coordinators: vec![allowed], ..Config::default() };
        let relay =
            MeasuredRelay::new(identity, Rate(20_000_000), config, Limits::default(), BTreeMap::new());
        relay.unwrap().serve(listener).await;
    });
    let contact = Contact { address, fingerprint: other.fingerprint() };
    let mut order = team.order(3, 40_000_000);
    for share in &mut order.shares {
        (share.address, share.fingerprint) = (address, contact.fingerprint);
        share.relay = other.relay_public();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_keep, stop) = watch::channel(false);
    let (one, two) = runtime.block_on(async {
        let (us, first) = (&team.coordinator, team.order(3, 20_000_000));
        tokio::join!(
            measure(us, team.relay, &team.measurers, first, stop.clone(), |_, _| {}),
            measure(us, contact, &team.measurers, order, stop.clone(), |_, _| {}),
        )
    });
    let estimate = |outcome: Result<Outcome, Unmeasured>| match outcome {
        Ok(outcome) => Ok(outcome.estimate.0),
        Err(Unmeasured { failure, .. }) => Err(failure),
    };
    Ok([estimate(one)?, estimate(two)?])
}

/// Two relays in one slot: the measurers serve both at the same time, within their rate.
#[test]
fn measurers_serve_several_measurements_at_once() {
    const LIMITS: [u64; 2] = [10_000_000, 20_000_000];
    let attempt = || {
        let estimates = measured_at_once()?;
        let bounded = estimates.iter().zip(LIMITS).all(|(estimate, limit)| *estimate <= limit * 3 / 2);
        assert!(bounded, "{estimates:?} of {LIMITS:?}");
        Ok(estimates)
    };
    let high =
        |estimates: &[u64; 2]| estimates.iter().zip(LIMITS).all(|(estimate, limit)| *estimate >= limit / 2);
    for (estimate, limit) in until_high(attempt, high).into_iter().zip(LIMITS) {
        assert!((limit / 2..=limit * 3 / 2).contains(&estimate), "{estimate} of {limit}");
    }
}

/// 500 silent connections, and 50 that send noise.
fn crowd(relay: SocketAddr) -> (Vec<std::net::TcpStream>, Vec<std::net::TcpStream>) {
    use std::io::Write as _;
    let connect = |_| std::net::TcpStream::connect(relay).unwrap();
    let (silent, mut noisy): (Vec<_>, Vec<_>) =
        ((0..500).map(connect).collect(), (0..50).map(connect).collect());
    for (n, stream) in noisy.iter_mut().enumerate() {
        // The start of a TLS record and then noise, or noise from the first byte.
        let noise = if n % 2 == 0 { [22, 3, 1, 2, 0, 1, 0, 1] } else { [n as u8; 8] };
        stream.write_all(&noise).unwrap();
    }
    (silent, noisy)
}

/// Silent connections, half-open handshakes and noise do not stop a measurement, and time out.
#[test]
fn unauthenticated_connections_cost_little_and_do_not_stop_a_measurement() {
    use std::io::Read as _;
    let attempt = || {
        let team = team(1, Rate(20_000_000));
        let crowd = crowd(team.relay.address);
        Ok((team.measure(&team.coordinator, team.order(2, 40_000_000))?, crowd))
    };
    let (outcome, (silent, mut noisy)) = until_high(attempt, |(outcome, _)| outcome.estimate.0 > 10_000_000);
    assert!(outcome.estimate.0 > 10_000_000, "{outcome:?}");
    // Noise from the first byte closes a connection at once.
    let mut answer = Vec::new();
    noisy[1].set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    // Either an alert and the end, or a reset.
    let _ = noisy[1].read_to_end(&mut answer);
    assert!(answer.len() < 100);
    drop(silent);
}

/// An unauthenticated peer that sends invalid CREATE cells and reads nothing is closed early.
///
/// A peer that falls silent after its first cell is closed by its timeout.
#[test]
fn peers_that_do_not_read_or_fall_silent_are_closed() {
    use tidegate_net::link;
    use tidegate_net::overlay::Timeouts;
    use tidegate_proto::flashflow::cell::{CELL, empty};
    let identity = Arc::new(Identity::generate());
    let (fingerprint, relays) = (identity.fingerprint(), identity.clone());
    let address = start(move |listener| async move {
        let timeouts = Timeouts { idle: Some(Span::from_secs(1)), unread: Span::from_secs(1) };
        let limits = Limits { timeouts, ..Limits::default() };
        let relay = MeasuredRelay::new(relays, Rate::UNLIMITED, Config::default(), limits, BTreeMap::new());
        relay.unwrap().serve(listener).await;
    });
    const CREATE: u8 = 10;
    let garbage = |n: u32| empty(1 << 31 | n, CREATE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connect = async || {
            let tls = tidegate_net::tls::client(None, fingerprint).unwrap();
            link::connect(address, tls, Span::from_secs(5)).await.unwrap()
        };
        let mut silent = connect().await;
        link::write_cells(&mut silent, &garbage(1)).await.unwrap();
        assert_eq!(link::read_cell(&mut silent).await.unwrap()[4], 4, "DESTROY");
        assert!(link::read_cell(&mut silent).await.is_err(), "closed");
        let mut flood = connect().await;
        let mut bytes = 0;
        for n in 1.. {
            let cells: Vec<u8> = (0..100).flat_map(|i| garbage(n * 100 + i)).collect();
            if link::write_cells(&mut flood, &cells).await.is_err() {
                break;
            }
            bytes += cells.len();
            assert!(bytes < 100_000 * CELL, "it goes on reading");
        }
    });
}

/// 10,000 silent connections during measurements do not keep a coordinator from a measurer.
#[test]
fn silent_connections_do_not_lock_out_a_coordinator() {
    let team = team(1, Rate(20_000_000));
    let measurer = team.measurers[0].address;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let crowd = std::thread::spawn(move || {
        // The process has fewer descriptors than connections: the measurer closes the oldest, and so does the
        // test.
        let mut open = std::collections::VecDeque::new();
        for n in 0..10_000 {
            open.extend(std::net::TcpStream::connect(measurer));
            if open.len() > 300 {
                open.pop_front();
            }
            if n > 1000 && stopped.try_recv().is_ok() {
                return n;
            }
        }
        10_000
    });
    for _ in 0..2 {
        let outcome = team.measure(&team.coordinator, team.order(1, 30_000_000));
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    // The thread may have ended already.
    let _ = stop.send(());
    assert!(crowd.join().unwrap() > 1000);
}

/// An admitted measurer sends cells that are not echo cells.
#[test]
fn garbage_on_a_measurement_circuit_ends_it() {
    use tidegate_net::link;
    use tidegate_proto::crypto::ntor::ClientHandshake;
    use tidegate_proto::flashflow::Message;
    use tidegate_proto::flashflow::cell::{self, CELL};

    let mut team = team(0, Rate::UNLIMITED);
    let measurer = Identity::generate();
    team.measurers.push(Contact { address: team.relay.address, fingerprint: measurer.fingerprint() });
    let order = team.order(2, 1_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Span::from_secs(5);
        let tls = |identity| tidegate_net::tls::client(Some(identity), team.relay.fingerprint).unwrap();
        let mut boss = link::connect(team.relay.address, tls(&team.coordinator), limit).await.unwrap();
        let params = Message::Params(order.params.clone()).to_cell().unwrap();
        link::write_cells(&mut boss, &params).await.unwrap();
        let answer = Message::from_cell(&link::read_cell(&mut boss).await.unwrap());
        assert_eq!(answer, Ok(Message::ParamsOk));
        let keys = team.relay_identity.relay_public();
        for (token, admitted) in [(order.params.token, true), ([0; 16], false)] {
            let mut stream = link::connect(team.relay.address, tls(&measurer), limit).await.unwrap();
            let (handshake, skin) = ClientHandshake::start(keys, tidegate_net::identity::random());
            link::write_cells(&mut stream, &cell::create(7, &token, &skin)).await.unwrap();
            let created = link::read_cell(&mut stream).await;
            assert_eq!(created.is_ok(), admitted);
            let Ok(created) = created else { continue };
            assert!(handshake.finish(&cell::parse_created(&created, 7).unwrap()).is_ok());
            link::write_cells(&mut stream, &[9; 3 * CELL]).await.unwrap();
            assert!(link::read_cell(&mut stream).await.is_err(), "nothing comes back but the end");
        }
    });
}
