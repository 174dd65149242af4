//! Streams over routes in simulated time: fast when they may be, and alive when relays are not.

use tidegate_control::paths::parameters::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::Span;
use tidegate_sim::parallel::plan::Delays;
use tidegate_sim::parallel::streams::{Read, Reading, download};

fn reading(peers: usize) -> Reading {
    Reading {
        peers,
        hops: [2, 2],
        uses: 64,
        limit: 400_000.0,
        delays: Delays::Constant(Span::from_millis(5)),
        jitter: 0.1,
        attempt_every: Span::from_millis(1),
        published: 64,
        duration: Span::from_secs(30),
        silent: Vec::new(),
    }
}

fn read(plan: &Reading, controller: &str) -> Read {
    let parameters = ControllerParameters::named(controller, 1500.0).expect("known");
    let read = download(plan, &parameters, Seed::root(1)).expect("sound");
    assert!(read.exact, "{controller}");
    read
}

/// Mean bytes per second from one second to another.
fn mean(read: &Read, seconds: std::ops::Range<usize>) -> f64 {
    let count = seconds.len() as f64;
    read.seconds[seconds].iter().sum::<u64>() as f64 / count
}

/// Before routes had a controller for the receiver, a faster pace made a stream slower: what the receiver could
/// not take was lost, and with each lost packet a receiver path.
#[test]
fn a_faster_pace_is_not_slower() {
    for uses in [1, 64] {
        let at = |pace: u64| {
            let (attempt_every, duration) = (Span::from_micros(pace), Span::from_secs(14));
            let plan = Reading { attempt_every, uses, duration, ..reading(6) };
            mean(&read(&plan, "explicit-or-aimd"), 8..14)
        };
        let (slow, fast) = (at(10_000), at(1_000));
        println!("{uses} packets per path: {slow:.0} B/s every 10 ms, {fast:.0} every 1 ms");
        assert!(fast > 0.9 * slow, "{uses} packets per path: {slow} to {fast} B/s");
    }
}

#[test]
fn silent_relays_cost_their_share_and_nothing_stops() {
    for (peers, silent, least) in [(7, vec![3], 0.6), (12, vec![3, 8], 0.5)] {
        let at = Span::from_secs(20);
        let silent = silent.into_iter().map(|peer| (peer, at, Span::from_secs(1000))).collect();
        let plan = Reading { silent, duration: Span::from_secs(35), ..reading(peers) };
        let read = read(&plan, "explicit-or-aimd");
        let (before, after) = (mean(&read, 15..20), mean(&read, 25..35));
        println!("{peers} peers: {before:.0} to {after:.0} B/s: {:?}", read.seconds);
        assert!(mean(&read, 20..30) >= least * before, "{peers} peers: {:?}", read.seconds);
        assert!(after >= least * before, "{peers} peers: {:?}", read.seconds);
        assert!(read.seconds[22..].iter().all(|bytes| *bytes > 0), "{peers} peers: {:?}", read.seconds);
    }
}

/// A receiver over its limit loses many packets in one second. When each of those losses halved the rates, the stream fell
/// from 1.2 MB/s to .1 and took as long again.
#[test]
fn a_second_over_the_limit_does_not_stop_a_stream() {
    let (attempt_every, duration) = (Span::from_micros(200), Span::from_secs(12));
    let delays = Delays::Constant(Span::from_millis(1));
    let plan = Reading { limit: 4e6, attempt_every, duration, delays, published: 256, ..reading(10) };
    let read = read(&plan, "explicit-or-aimd");
    let most = *read.seconds.iter().max().expect("seconds");
    let full = read.seconds.iter().position(|bytes| 2 * bytes >= most).expect("one is the most");
    assert!(read.progress.timed_out + read.progress.refused > 0, "the limit was never reached");
    assert!(read.seconds[full..].iter().all(|bytes| 2 * bytes >= most), "{:?}", read.seconds);
    assert!(most > 800_000, "{:?}", read.seconds);
}
