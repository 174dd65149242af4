//! The overlay of per-packet paths: conservation, determinism, limits, bad peers and bad plans.

use proptest::prelude::*;
use tidegate_control::paths::{CONTROLLERS, ControllerParameters};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::parallel::onions::{self, Transfer};
use tidegate_sim::parallel::{Change, Conduct, Delays, Plan, PlanError, Report, Traffic, world};

fn run(plan: &Plan, controller: &str, seed: u64) -> Report {
    let parameters = ControllerParameters::named(controller, f64::from(plan.packet)).expect("known");
    world::run(plan, &parameters, Seed::root(seed), &|_| true).expect("a sound plan")
}

fn seconds(s: u64) -> Time {
    Time::ZERO + Span::from_secs(s)
}

#[test]
fn every_controller_repeats_itself_and_loses_no_packet_from_the_books() {
    for controller in CONTROLLERS.iter().map(|part| part.name) {
        let plan = Plan::thesis(8, Span::from_secs(20));
        let report = run(&plan, controller, 1);
        assert_eq!(report, run(&plan, controller, 1), "{controller}");
        assert_ne!(report, run(&plan, controller, 2), "{controller}");
        let total = report.total(0);
        assert_eq!(report.bins.len(), 20);
        // Packets neither received nor dropped are in flight: at most one second of a source's traffic.
        let flying = total.sent - total.received - total.drops;
        assert!(flying <= 8 * 200, "{controller}: {flying} packets unaccounted for");
        assert!(total.acks + total.late <= total.received, "{controller}");
    }
}

#[test]
fn no_relay_passes_more_than_its_limit() {
    // Destinations pass at most 8 x 10 packets per second; a packet also takes three relays.
    let mut plan = Plan::thesis(8, Span::from_secs(30));
    plan.peers.iter_mut().for_each(|peer| peer.limit = 15_999);
    let report = run(&plan, "random", 1);
    let passed = report.total(1).arrivals - report.total(1).drops;
    assert!(passed <= 8 * 10 * 30, "{passed}");
    assert!(report.total(1).drop_rate() > 0.5);
}

#[test]
fn perfect_control_drops_no_packets_without_jitter() {
    let mut plan = Plan::thesis(12, Span::from_secs(10));
    plan.jitter = 0.0;
    let total = run(&plan, "perfect", 1).total(0);
    assert_eq!((total.drops, total.received > 3000), (0, true));
}

#[test]
fn peers_that_leave_drop_or_lie_are_survived() {
    let mut plan = Plan::thesis(12, Span::from_secs(60));
    plan.changes = vec![
        (seconds(10), Change::Leave(3)),
        (seconds(30), Change::Join(3)),
        (seconds(20), Change::Limit(4, 100_000)),
        (seconds(25), Change::Limit(5, 0)),
    ];
    plan.peers[0].conduct = Conduct::DropsAll;
    plan.peers[1].conduct = Conduct::Claims { rate: 1e9, silent: true };
    plan.peers[2].conduct = Conduct::Claims { rate: 1.0, silent: false };
    plan.peers[6].traffic = Traffic::OnOff { on: Span::from_secs(2), off: Span::from_secs(3) };
    plan.peers[7].traffic = Traffic::OnOff { on: Span::ZERO, off: Span::from_millis(50) };
    for controller in CONTROLLERS.iter().map(|part| part.name) {
        let total = run(&plan, controller, 3).total(0);
        assert!(total.received > 1000, "{controller}: {total:?}");
    }
}

#[test]
fn an_overlay_without_peers_stops_sending() {
    let mut plan = Plan::thesis(5, Span::from_secs(20));
    plan.changes = (0..5).map(|peer| (seconds(2), Change::Leave(peer))).collect();
    let report = run(&plan, "explicit", 1);
    assert_eq!(report.total(4).sent, 0);
}

#[test]
fn unsound_plans_are_refused_by_name() {
    let sound = || Plan::thesis(20, Span::from_secs(1));
    let refused = |change: fn(&mut Plan)| {
        let mut plan = sound();
        change(&mut plan);
        plan.check().expect_err("refused")
    };
    assert_eq!(refused(|p| p.hops = 0), PlanError::Hops { hops: 0, peers: 20 });
    assert_eq!(refused(|p| p.hops = 9), PlanError::Hops { hops: 9, peers: 20 });
    assert_eq!(refused(|p| p.peers.truncate(4)), PlanError::Hops { hops: 3, peers: 4 });
    assert_eq!(refused(|p| p.packet = 0), PlanError::Zero("the packet size"));
    assert_eq!(refused(|p| p.bin = Span::ZERO), PlanError::Zero("the interval of results"));
    assert_eq!(refused(|p| p.attempt_every = Span::ZERO), PlanError::Zero("the time between attempts"));
    assert!(matches!(refused(|p| p.jitter = f64::NAN), PlanError::Jitter(_)));
    assert!(matches!(refused(|p| p.delays = Delays::Constant(Span::from_secs(9))), PlanError::Delay(_)));
    assert_eq!(refused(|p| p.watch = Some((0, 20))), PlanError::NoSuchPeer(20));
    assert_eq!(refused(|p| p.peers[3].to = Some(3)), PlanError::SendsToItself(3));
    assert_eq!(
        refused(|p| p.peers[0].conduct = Conduct::Claims { rate: -1.0, silent: false }),
        PlanError::Claims(-1.0)
    );
}

#[test]
fn real_packets_cross_the_simulated_overlay_byte_exact_with_each_controller() {
    let plan = Transfer {
        peers: 8,
        hops: 3,
        limit: 60_000.0,
        delays: Delays::Constant(Span::from_millis(5)),
        jitter: 0.1,
        attempt_every: Span::from_millis(5),
        bytes: 40_000,
        deadline: Span::from_secs(300),
    };
    for controller in ["random", "aimd", "q-learning", "cubic", "explicit-or-aimd"] {
        let parameters = ControllerParameters::named(controller, 1500.0).expect("known");
        let delivery = onions::transfer(&plan, &parameters, Seed::root(1)).expect("sound");
        assert!(delivery.exact && delivery.took.is_some(), "{controller}: {:?}", delivery.progress);
        if controller == "aimd" {
            let again = onions::transfer(&plan, &parameters, Seed::root(1)).expect("sound");
            assert_eq!(delivery, again);
        }
        let forwarded: u64 = delivery.nodes.iter().map(|node| node.forwarded).sum();
        assert!(forwarded >= 3 * delivery.progress.acked, "three relays each");
    }
    let unsound = Transfer { hops: 5, ..plan.clone() };
    let parameters = ControllerParameters::named("aimd", 1500.0).expect("known");
    assert!(onions::transfer(&unsound, &parameters, Seed::root(1)).is_err());
    let perfect = ControllerParameters::named("perfect", 1500.0).expect("known");
    assert_eq!(onions::transfer(&plan, &perfect, Seed::root(1)), Err(PlanError::Central));
    let hopeless = Transfer { limit: 1000.0, deadline: Span::from_secs(5), ..plan };
    let delivery = onions::transfer(&hopeless, &parameters, Seed::root(1)).expect("sound");
    assert!(delivery.took.is_none() && !delivery.exact, "nothing fits through the limits");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sound_plan_runs(
        peers in 4usize..9,
        hops in 1usize..4,
        limit in 0u32..100_000,
        delay in 0u64..300,
        jitter in 0.0..0.25f64,
        controller in 0usize..CONTROLLERS.len(),
        seed in any::<u64>(),
    ) {
        let mut plan = Plan::thesis(peers, Span::from_secs(4));
        plan.hops = hops.min(peers - 2);
        plan.peers.iter_mut().for_each(|peer| peer.limit = limit);
        plan.delays = Delays::Constant(Span::from_millis(delay));
        plan.jitter = jitter;
        let total = run(&plan, CONTROLLERS[controller].name, seed).total(0);
        prop_assert!(total.received + total.drops <= total.sent);
        prop_assert!(total.received * 1500 <= u64::from(limit) * peers as u64 * 5);
    }
}
