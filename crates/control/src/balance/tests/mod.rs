//! Small networks with weights computed by hand.

mod authors;
mod scanners;

use super::diprober::DiProber;
use super::eigenspeed::EigenSpeed;
use super::peerflow::PeerFlow;
use super::sbws::Sbws;
use super::team::Team;
use super::torflow::TorFlow;
use super::truth::{SelfReports, Truth};
use super::*;
use crate::positions::Class;

fn evidence(round: Round) -> Evidence {
    let relays = round.reports.len();
    Evidence {
        classes: vec![Class::GuardExit; relays],
        capacities: vec![4e6; relays],
        trusted: vec![false; relays],
        rounds: vec![round],
    }
}

/// Three relays that say 1, 2 and 4 MB/s; downloads at 100 and 300, at 200 and at 400 kB/s.
fn three() -> Evidence {
    evidence(Round {
        weights: vec![1e6, 1e6, 2e6],
        reports: vec![1e6, 2e6, 4e6],
        probes: vec![vec![1e5, 3e5], vec![2e5], vec![4e5]],
        ..Round::default()
    })
}

fn near(ours: &[Option<f64>], expected: &[f64]) {
    assert_eq!(ours.len(), expected.len());
    for (ours, expected) in ours.iter().zip(expected) {
        let ours = ours.expect("it was weighed");
        assert!((ours / expected - 1.0).abs() < 1e-6, "{ours} instead of {expected}");
    }
}

#[test]
fn torflow_multiplies_reports_by_ratios() {
    // Means 200, 200, 400: mean 800/3. From the mean up: 300, 200, 400: mean 300. The larger ratios: 1, 0.75, 1.5.
    let torflow = TorFlow { cap: 1.0, ..TorFlow::default() };
    near(&torflow.weigh(&three()), &[1e6, 1.5e6, 6e6]);
    // Each third of 8.5 MB/s at most.
    near(&TorFlow::default().weigh(&three()), &[1e6, 1.5e6, 8.5e6 / 3.0]);
}

#[test]
fn sbws_starts_from_the_lower_of_report_and_consensus_and_rounds() {
    // Filtered means 300, 200 and 400 against 300; bases 1, 1 and 2 MB/s.
    let sbws = Sbws { cap: 1.0, ..Sbws::default() };
    near(&sbws.weigh(&three()), &[1e6, 670_000.0, 2.7e6]);
    let mut slow = three();
    slow.rounds[0].weights = vec![0.0, 123_456.0, 0.0];
    near(&sbws.weigh(&slow), &[1e6, 82_000.0, 5.3e6]);
    let mut classes = three();
    classes.classes = vec![Class::Guard, Class::Exit, Class::Exit];
    // Alone in its class a relay is as fast as its class; the exits: 200 and 400 against 300.
    near(&sbws.weigh(&classes), &[1e6, 670_000.0, 2.7e6]);
    // Each third of the sum at most.
    near(&Sbws::default().weigh(&three()), &[1e6, 670_000.0, 1.4e6]);
}

#[test]
fn unprobed_relays_have_no_weight_and_are_published_with_20_kb_s() {
    let mut missing = three();
    missing.rounds[0].probes[1].clear();
    let weights = TorFlow::default().weigh(&missing);
    assert!(weights[1].is_none() && weights[0].is_some());
    let reports = &missing.last().reports;
    assert_eq!(publish(&[weights], reports).unwrap()[1], 20_000.0);
    assert_eq!(publish(&[vec![None; 3]], reports), Err(Unweighed));
    assert_eq!(publish(&[vec![Some(0.0), Some(f64::NAN), None]], reports), Err(Unweighed));
    assert_eq!(publish(&[], &[]), Err(Unweighed));
}

#[test]
fn of_several_files_the_low_median_counts() {
    let file = |weight: f64| vec![Some(weight)];
    assert_eq!(publish(&[file(3.0), file(1.0), file(2.0)], &[9.0]).unwrap(), [2.0]);
    assert_eq!(publish(&[file(3.0), file(1.0), file(2.0), file(4.0)], &[9.0]).unwrap(), [2.0]);
    assert_eq!(low_median(&[Some(5.0), None, None]), None, "fewer than half have it");
}

#[test]
fn eigenspeed_finds_the_eigenvector() {
    let mut all = three();
    let seen = |speed: f64| Seen { bytes: 1.0, streams: 2.0, speeds: 2.0 * speed };
    // Everybody sees relay 2 twice as fast as the others: rows (0, 1/3, 2/3), (1/3, 0, 2/3), (1/2, 1/2, 0).
    let pairs = [((0, 1), 1.0), ((0, 2), 2.0), ((1, 0), 1.0), ((1, 2), 2.0), ((2, 0), 2.0), ((2, 1), 2.0)];
    all.rounds[0].seen = pairs.into_iter().map(|(pair, speed)| (pair, seen(speed))).collect();
    // v = v T: (0.3, 0.3, 0.4), of 7 MB/s that relays say together.
    near(&EigenSpeed::default().weigh(&all), &[2.1e6, 2.1e6, 2.8e6]);
    assert_eq!(EigenSpeed::default().weigh(&three()), [None; 3], "nobody saw anybody");
}

#[test]
fn peerflow_leaves_out_the_highest_claims() {
    let mut all = three();
    all.rounds[0].weights = vec![1.0; 3];
    let seen = |bytes: f64| Seen { bytes, ..Seen::default() };
    let pairs =
        [((0, 1), 10.0), ((1, 0), 10.0), ((0, 2), 20.0), ((2, 0), 20.0), ((1, 2), 20.0), ((2, 1), 20.0)];
    all.rounds[0].seen = pairs.into_iter().map(|(pair, bytes)| (pair, seen(bytes))).collect();
    let free = PeerFlow { disbelieved: 0.0, growth: 100.0, ..PeerFlow::default() };
    // Of 100 bytes: relay 2 is said to have 20 by each of two thirds: 0.6 of all by each. The others: 0.3 and 0.6.
    near(&free.weigh(&all), &[0.45 * 7e6, 0.45 * 7e6, 0.6 * 7e6]);
    // One that claims the world gains nothing if half of the weight is not believed.
    let mut lies = all.clone();
    lies.rounds[0].seen.insert((0, 2), seen(1e9));
    let careful = PeerFlow { disbelieved: 0.5, growth: 100.0, ..PeerFlow::default() };
    assert!(careful.weigh(&lies)[2] < free.weigh(&lies)[2]);
    // With a growth factor of 1 weights stay equal.
    let slow = PeerFlow { growth: 1.0, ..free };
    near(&slow.weigh(&all), &[7e6 / 3.0, 7e6 / 3.0, 7e6 / 3.0]);
}

#[test]
fn flashflow_takes_the_last_conclusive_measurement() {
    let mut all = three();
    all.rounds[0].measured = vec![Some(3e6), None, Some(1e6)];
    all.rounds.push(Round { measured: vec![None, Some(2e6), Some(2e6)], ..all.rounds[0].clone() });
    near(&Team::default().weigh(&all), &[3e6, 2e6, 2e6]);
    assert_eq!(Team::default().weigh(&three()), [None; 3]);
}

#[test]
fn errors_and_advantages_are_the_papers() {
    assert_eq!(weight_error(&[1.0, 1.0], &[3.0, 1.0]), 0.25);
    assert_eq!(weight_error(&[30.0, 10.0], &[3.0, 1.0]), 0.0);
    assert_eq!(capacity_error(&[1.0, 2.0], &[3.0, 1.0]), 0.25);
    assert_eq!(advantage(&[2.0, 2.0], &[3.0, 1.0], &[false, true]), 2.0);
    let all = three();
    near(&Truth.weigh(&all), &[4e6; 3]);
    near(&SelfReports.weigh(&all), &[1e6, 2e6, 4e6]);
}

#[test]
fn attackers_report_false_values() {
    use super::attack::{Attack, Trick};
    let attack = |trick| Attack { trick, ..Attack::default() };
    assert_eq!(attack(Trick::Inflate).report(1.0, 5.0), 50.0);
    assert_eq!(attack(Trick::Refuse).report(1.0, 5.0), 50.0);
    assert_eq!(attack(Trick::Hold).report(1.0, 5.0), 1.0);
    let seen = |bytes| Seen { bytes, ..Seen::default() };
    let mut all = [((0, 1), seen(1.0)), ((1, 0), seen(2.0)), ((2, 0), seen(3.0))].into();
    attack(Trick::Frame).frame(&mut all, &[false, true, true], &[1.0; 3], 2.0);
    let said: Vec<_> = all.iter().map(|(pair, seen)| (*pair, seen.bytes)).collect();
    assert_eq!(said, [((0, 1), 1.0), ((1, 2), 20.0), ((2, 1), 20.0)]);
}
