//! FlashFlow's machines in simulated time.

use std::collections::BTreeMap;

use tidegate_control::flashflow::bandwidth_file::median;
use tidegate_control::flashflow::{Percent, aggregate};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_sim::flashflow::{BackgroundPlan, GuestsPlan, MeasurerPlan, Plan, RelayPlan, Report, run};
use tidegate_sim::plan::{LinkPlan, QueuePlan};
use tidegate_sim::tcp;

const MBIT: u64 = 1_000_000;

fn link(mbit: u64) -> LinkPlan {
    let rate = Rate(mbit * MBIT);
    LinkPlan { rate, queue: QueuePlan::DropTail { packets: u32::MAX, bytes: rate.0 / 8 / 20 } }
}

/// Three measurers at 40, 62 and 137 ms measure relays of that rate.
fn plan(relays: usize, mbit: u64, background: u64, seconds: u16) -> Plan {
    let share = (Rate(mbit * MBIT), 10);
    let relay = RelayPlan {
        rate: Rate(mbit * MBIT),
        cell_cost: Span::ZERO,
        slow: 0.0,
        holds: false,
        background: BackgroundPlan { rate: Rate(background * MBIT), circuits: 4 },
        shares: vec![share; 3],
    };
    let measurer = |rtt: u64| MeasurerPlan {
        link: link(941),
        delay: Span::from_millis(rtt / 2),
        jitter: Span::from_millis(1),
        loss: 0.0,
        guests: None,
    };
    Plan {
        link: link(954),
        relays: vec![relay; relays],
        measurers: [40, 62, 137].map(measurer).into(),
        coordinator_delay: Span::from_millis(30),
        seconds,
        background_percent: 25,
        check_one_in: 125,
        around: Span::from_secs(6),
        tcp: tcp::Config::default(),
    }
}

fn go(plan: &Plan, seed: u64) -> Report {
    run(plan, Seed::root(seed), &|_| true).unwrap()
}

#[test]
fn a_limited_relay_is_measured_and_runs_repeat_exactly() {
    let plan = plan(1, 10, 0, 8);
    let report = go(&plan, 1);
    let outcome = report.relays[0].result.as_ref().unwrap();
    let error = outcome.estimate.0 as f64 / 10e6 - 1.0;
    assert!(error.abs() < 0.03, "{error}, {outcome:?}");
    assert_eq!(outcome.seconds.len(), 8);
    assert!(outcome.checked > 100, "cells are really checked");
    assert_eq!(go(&plan, 1).digest, report.digest);
    assert_ne!(go(&plan, 2).digest, report.digest);
}

#[test]
fn guests_of_the_measurers_machines_take_their_share() {
    let estimate = |mean: f64| {
        let mut plan = plan(1, 30, 0, 8);
        for measurer in &mut plan.measurers {
            measurer.link = link(30);
            measurer.guests = Some(GuestsPlan { mean, stay: Span::from_secs(1000) });
        }
        let report = go(&plan, 1);
        assert_eq!(go(&plan, 1).digest, report.digest);
        report.relays[0].result.as_ref().unwrap().estimate.0 as f64 / 30e6
    };
    let (few, many) = (estimate(0.01), estimate(20.0));
    assert!(few > 0.97, "{few}");
    // Each gets about a twentieth of its link, so together they have about 4 Mbit/s.
    assert!((0.05..0.35).contains(&many), "{many}");
}

#[test]
fn background_is_capped_meanwhile_and_free_before_and_after() {
    let plan = plan(1, 20, 10, 8);
    let report = go(&plan, 3);
    let relay = &report.relays[0];
    let outcome = relay.result.as_ref().unwrap();
    let error = outcome.estimate.0 as f64 / 20e6 - 1.0;
    assert!(error.abs() < 0.05, "{error}, {outcome:?}");
    let (from, until) = (relay.measured.0.unwrap(), relay.measured.1.unwrap());
    assert_eq!(until.since(from), Span::from_secs(8));
    let mbit = |bytes: u64| bytes as f64 * 8.0 / 1e6;
    for (second, (measurement, background)) in relay.forwarded.iter().enumerate() {
        let (begin, end) = (second as f64, second as f64 + 1.0);
        if begin > from.as_secs_f64() + 1.0 && end < until.as_secs_f64() {
            // A quarter of the whole, which the relay's limit bounds.
            assert!((mbit(*background) - 5.0).abs() < 0.5, "{second}: {}", mbit(*background));
            assert!((mbit(measurement + background) - 20.0).abs() < 0.6, "{second}");
        } else if
        // After two seconds, the circuits' windows have drained.
        (begin > 1.0 && end < from.as_secs_f64()) || begin > until.as_secs_f64() + 2.0 {
            assert!((mbit(*background) - 10.0).abs() < 2.5, "{second}: {}", mbit(*background));
            assert_eq!(*measurement, 0);
        }
    }
}

#[test]
fn relays_of_one_machine_are_measured_at_the_same_time() {
    let mut plan = plan(3, 10, 0, 5);
    plan.around = Span::ZERO;
    for relay in go(&plan, 4).relays {
        let outcome = relay.result.unwrap();
        assert!((outcome.estimate.0 as f64 / 10e6 - 1.0).abs() < 0.05, "{outcome:?}");
    }
}

#[test]
fn a_processor_bounds_a_relay_without_a_limit() {
    let mut plan = plan(1, 20, 0, 5);
    plan.relays[0].rate = Rate::UNLIMITED;
    // 514 bytes in 100 us: 41.12 Mbit/s.
    plan.relays[0].cell_cost = Span::from_micros(100);
    let outcome = go(&plan, 5).relays[0].result.clone().unwrap();
    assert!((outcome.estimate.0 as f64 / 41.12e6 - 1.0).abs() < 0.03, "{outcome:?}");
}

/// The paper's estimate, the median and ours for a relay, over its capacity.
fn median_and_estimate(plan: &Plan, truth: f64, seed: u64) -> (f64, f64) {
    let outcome = go(plan, seed).relays[0].result.clone().unwrap();
    let ratio = Percent::new(plan.background_percent).unwrap();
    let seconds: Vec<_> = outcome.seconds.iter().map(|second| second.second(ratio)).collect();
    (aggregate::median(&seconds).unwrap().0 as f64 / truth, outcome.estimate.0 as f64 / truth)
}

#[test]
fn a_relay_that_holds_cells_back_and_claims_background_gains_no_more_than_the_bound() {
    for seconds in [10, 30] {
        let mut plan = plan(1, 10, 0, seconds);
        plan.around = Span::ZERO;
        plan.relays[0].holds = true;
        plan.relays[0].background.circuits = 0;
        let (median, estimate) = median_and_estimate(&plan, 10e6, 7);
        assert!(median > 1.8, "it is a good liar: {median} in {seconds} s");
        assert!(estimate > 1.2 && estimate <= 1.40, "{estimate} in {seconds} s");
    }
}

#[test]
fn slow_seconds_lower_an_honest_relays_estimate_as_the_mean() {
    let mut plan = plan(1, 20, 0, 30);
    plan.around = Span::ZERO;
    plan.relays[0] = RelayPlan {
        rate: Rate::UNLIMITED,
        // 514 bytes in 400 us: 10.28 Mbit/s.
        cell_cost: Span::from_micros(400),
        slow: 0.2,
        ..plan.relays[0].clone()
    };
    let (median, estimate) = median_and_estimate(&plan, 10.28e6, 8);
    let honest = Plan { relays: vec![RelayPlan { slow: 0.0, ..plan.relays[0].clone() }], ..plan.clone() };
    let (whole, _) = median_and_estimate(&honest, 10.28e6, 8);
    assert!(median > 0.95 * whole, "the median forgives a fifth of the seconds: {median} of {whole}");
    // The mean is 0.9 of it, and the bound allows 1.05 of that.
    assert!(estimate > 0.92 * whole && estimate <= median, "{estimate} of {whole}");
}

/// Three coordinators measure at different times. The relay is three times as fast for the first one and cheats the others
/// as far as it can, or one of the three is corrupt.
#[test]
fn the_median_of_three_coordinators_is_within_the_bound_of_one() {
    let measured = |mbit: u64, holds: bool, seed: u64| {
        let mut plan = plan(1, mbit, 0, 10);
        plan.around = Span::ZERO;
        plan.relays[0].holds = holds;
        plan.relays[0].background.circuits = 0;
        let estimate = go(&plan, seed).relays[0].result.clone().unwrap().estimate;
        BTreeMap::from([([1; 20], estimate.0 / 8000)])
    };
    let fast = measured(30, false, 1);
    let liar = [fast, measured(10, true, 2), measured(10, true, 3)];
    let honest = [BTreeMap::from([([1; 20], 1)]), measured(10, false, 4), measured(10, false, 5)];
    for (files, range) in [(liar, 1.0..=1.40), (honest, 0.97..=1.03)] {
        let ratio = median(&files)[&[1; 20]] as f64 * 8000.0 / 10e6;
        assert!(range.contains(&ratio), "{ratio} of {files:?}");
    }
}
