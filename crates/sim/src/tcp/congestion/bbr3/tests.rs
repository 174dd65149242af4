use super::*;

const MS: Span = Span::from_millis(1);

fn at(ms: u64) -> Time {
    Time::ZERO + MS * ms
}

/// A sample of 100 segments in 100 ms, in a flight of 100, of which `lost` are lost.
fn rate(speed: f64, prior_delivered: u64, lost: u64) -> Rate {
    let delivered = (speed / 10.0) as u64;
    Rate { delivered, interval: MS * 100, prior_delivered, app_limited: false, in_network: 100, lost }
}

fn progress(rate: Option<Rate>, total: u64, in_network: u32, repair: Repair) -> Progress {
    Progress {
        rate,
        app_limited: false,
        total,
        at: Time::ZERO,
        losses: 0,
        lost_total: 0,
        prior_in_network: in_network,
        in_network,
        delayed: false,
        window_limits: true,
        repair,
        smoothed: MS * 100,
        paced_until: Time::ZERO,
        mss: 1000,
    }
}

fn sample(now: Time, acked: u32, progress: &Progress) -> Sample<'_> {
    let (rtt, progress) = (Some(MS * 100), Some(progress));
    Sample { now, acked, rtt, una: 0, next: 0, limited: true, may_grow: true, progress }
}

/// A sender and its window, one acknowledgement per round trip of 100 ms.
struct Rounds {
    bbr: Bbr3,
    window: Window,
    now: u64,
    total: u64,
}

impl Rounds {
    fn new() -> Rounds {
        Rounds { bbr: Bbr3::default(), window: Window::new(10), now: 0, total: 0 }
    }

    /// A round trip at this speed, after which so many segments are in the network.
    fn round(&mut self, speed: f64, in_network: u32, lost: u64, repair: Repair) -> Mode {
        self.now += 100;
        let (sent_at, acked) = (self.total, (speed / 10.0) as u32);
        self.total += u64::from(acked);
        let progress = progress(Some(rate(speed, sent_at, lost)), self.total, in_network, repair);
        self.bbr.on_ack(&mut self.window, &sample(at(self.now), acked, &progress));
        self.model().mode
    }

    fn lose(&mut self, loss: Loss) {
        let (now, total) = (at(self.now), self.total);
        self.bbr.on_loss(&self.window, now, total, &loss);
    }

    fn model(&mut self) -> &mut Model {
        &mut self.bbr.0
    }

    /// In the cycle at 1000 segments/s.
    fn cruising() -> Rounds {
        let mut rounds = Rounds::new();
        let modes: Vec<Mode> = (0..6).map(|_| rounds.round(1000.0, 50, 0, Repair::None)).collect();
        assert_eq!(modes[..3], [Mode::Startup; 3]);
        assert_eq!(modes[3..], [Mode::Cruise; 3], "no queue is to be drained");
        rounds
    }
}

fn loss(start: u64, packets: u32, in_network: u32, lost: u64) -> Loss {
    Loss { start, end: start + u64::from(packets), packets, in_network, lost, app_limited: false }
}

/// The table "Summary of Control Behavior in the State Machine".
#[test]
fn gains_are_those_of_the_drafts_table() {
    let table = [
        (Mode::Startup, 2.77, 2.0),
        (Mode::Drain, 0.5, 2.0),
        (Mode::Down, 0.9, 2.0),
        (Mode::Cruise, 1.0, 2.0),
        (Mode::Refill, 1.0, 2.0),
        (Mode::Up, 1.25, 2.25),
        (Mode::ProbeRtt, 1.0, 0.5),
    ];
    for (mode, pacing, window) in table {
        assert_eq!((mode.pacing_gain(), mode.window_gain()), (pacing, window), "{mode:?}");
    }
}

/// Whole segments as Google's `bbr_inflight_hi_from_lost_skb` has them for the same three numbers.
#[test]
fn the_flight_at_a_loss_is_that_of_googles_code() {
    for (in_network, lost, packets, flight) in
        [(110, 10, 10, 102.0), (1020, 25, 20, 1015.0), (110, 12, 10, 100.0), (500, 9, 1, 501.0)]
    {
        let found = flight_at_loss(&loss(0, packets, in_network, lost));
        assert_eq!(found.floor(), flight, "{in_network} {lost} {packets}");
    }
    assert!(!is_too_high(2, 100) && is_too_high(3, 100), "more than 2 %");
}

#[test]
fn startup_ends_after_three_round_trips_without_a_quarter_more() {
    let mut rounds = Rounds::new();
    for speed in [100.0, 200.0, 400.0, 500.0, 600.0, 620.0] {
        assert_eq!(rounds.round(speed, 900, 0, Repair::None), Mode::Startup, "{speed}");
    }
    assert_eq!(rounds.round(700.0, 900, 0, Repair::None), Mode::Startup, "a quarter above 500 is 625");
    assert_eq!(rounds.round(710.0, 900, 0, Repair::None), Mode::Startup);
    assert_eq!(rounds.round(720.0, 900, 0, Repair::None), Mode::Startup);
    assert_eq!(rounds.round(730.0, 900, 0, Repair::None), Mode::Drain);
    assert_eq!(rounds.model().pacing_rate, 0.5 * 730.0 * 1000.0 * 0.99);
    // The queue does not drain: after three round trips the sender goes on.
    let modes: Vec<Mode> = (0..4).map(|_| rounds.round(730.0, 900, 0, Repair::None)).collect();
    assert_eq!(modes, [Mode::Drain, Mode::Drain, Mode::Drain, Mode::Down]);
}

#[test]
fn six_ranges_of_losses_in_a_round_trip_end_startup_and_five_do_not() {
    for (ranges, lost, repair, mode) in [
        (6, 3, Repair::Recovery, Mode::Drain),
        (5, 3, Repair::Recovery, Mode::Startup),
        (6, 2, Repair::Recovery, Mode::Startup),
        (6, 3, Repair::None, Mode::Startup),
    ] {
        let mut rounds = Rounds::new();
        rounds.round(100.0, 900, 0, Repair::None);
        rounds.round(400.0, 900, 0, Repair::None);
        // Two neighbours are one range.
        rounds.lose(loss(0, 1, 1000, 1));
        for range in 0..ranges {
            rounds.lose(loss(1 + 10 * range, 1, 1000, 1));
        }
        let found = rounds.round(1000.0, 900, lost, repair);
        assert_eq!(found, mode, "{ranges} {lost} {repair:?}");
        let bound = if mode == Mode::Drain { 100.0 } else { f64::INFINITY };
        assert_eq!(rounds.model().inflight, bound, "what the last round trip delivered");
    }
}

#[test]
fn a_round_trip_with_losses_leaves_seven_tenths_or_what_was_delivered() {
    let mut rounds = Rounds::cruising();
    let window = f64::from(rounds.window.cwnd);
    rounds.lose(loss(0, 1, 100, 1));
    rounds.round(600.0, 50, 1, Repair::Recovery);
    let ShortTerm { rate, inflight, .. } = rounds.model().short;
    assert_eq!((rate, inflight), (1000.0, f64::max(100.0, 0.7 * window)), "a round trip delivered 1000/s");
    rounds.lose(loss(5, 1, 100, 1));
    rounds.round(500.0, 50, 1, Repair::Recovery);
    assert_eq!(rounds.model().short.rate, 0.7 * 1000.0);
    rounds.lose(loss(9, 1, 100, 1));
    rounds.round(500.0, 50, 1, Repair::Recovery);
    assert_eq!(rounds.model().short.rate, 500.0, "0.7 times 700 is less than was delivered");
    assert_eq!(rounds.model().rate, 500.0);
    rounds.bbr.on_undo(&mut rounds.window, 100);
    assert_eq!(rounds.model().short.rate, 700.0, "as before the last round trip of losses");
    rounds.model().start_refill();
    assert_eq!(rounds.model().short.rate, f64::INFINITY, "the next probe forgets the losses");
}

#[test]
fn a_probe_that_loses_too_much_sets_the_bound_and_leaves_headroom() {
    let mut rounds = Rounds::cruising();
    let window = rounds.window;
    rounds.model().start_up(&window, 1000.0);
    // Two of a hundred are not too many, three are.
    rounds.lose(loss(0, 2, 100, 2));
    assert_eq!((rounds.model().mode, rounds.model().inflight), (Mode::Up, f64::INFINITY));
    rounds.lose(loss(7, 1, 100, 3));
    assert_eq!((rounds.model().mode, rounds.model().inflight), (Mode::Down, 99.0));
    assert!((rounds.model().with_headroom() - 99.0 * 0.85).abs() < 1e-9);
    rounds.lose(loss(11, 50, 100, 53));
    assert_eq!(rounds.model().inflight, 99.0, "once per probe");
    // A small flight does not lower the bound below 0.7 times the product of rate and round trip.
    rounds.model().start_up(&window, 1000.0);
    rounds.lose(loss(80, 5, 30, 5));
    assert_eq!(rounds.model().inflight, 70.0);
    rounds.model().inflight = 5.0;
    assert_eq!(rounds.model().with_headroom(), 4.0, "a segment of headroom, four in flight");
}

#[test]
fn the_bound_grows_by_twice_as_much_in_each_round_trip_of_a_probe() {
    let mut rounds = Rounds::cruising();
    rounds.window.cwnd = 64;
    rounds.model().inflight = 64.0;
    let window = rounds.window;
    rounds.model().start_up(&window, 1000.0);
    let grown = (0..5).map(|_| {
        let (per_increase, before) = (rounds.model().per_increase, rounds.model().inflight);
        let window = Window { cwnd: before as u32, ..rounds.window };
        let progress = progress(None, 0, 64, Repair::None);
        let sample = sample(at(0), 64, &progress);
        rounds.model().round_start = false;
        rounds.model().raise_bound(&window, &sample, &progress);
        rounds.model().raise_slope(&Window { cwnd: 64, ..window });
        (per_increase, rounds.model().inflight - before)
    });
    assert_eq!(grown.collect::<Vec<_>>(), [(64.0, 1.0), (32.0, 2.0), (16.0, 4.0), (8.0, 8.0), (4.0, 16.0)]);
}

#[test]
fn probes_follow_two_to_three_seconds_or_renos_round_trips() {
    let mut waits = Vec::new();
    for start in 0..50 {
        let mut rounds = Rounds::cruising();
        rounds.model().start_down(at(start));
        let (wait, first) = (rounds.model().probe_wait, rounds.model().rounds_since_probe);
        assert!((MS * 2000..MS * 3000).contains(&wait) && first < 2, "{wait:?} {first}");
        waits.push(wait);
        let window = Window::new(200);
        assert!(!rounds.model().is_time_to_probe(&window, at(start) + wait));
        assert!(rounds.model().is_time_to_probe(&window, at(start + 1) + wait));
        // The product is 100 segments, so the limit is 63; a Reno flow of 30 segments would probe after 30.
        for (cwnd, limit) in [(200, 63), (30, 30)] {
            let due = [limit - 1, limit].map(|since| {
                rounds.model().rounds_since_probe = since;
                rounds.model().is_time_to_probe(&Window::new(cwnd), at(start))
            });
            assert_eq!(due, [false, true]);
        }
    }
    waits.dedup();
    assert!(waits.len() > 40);
}

#[test]
fn after_a_lossy_probe_the_next_one_stops_at_the_bound_and_is_repeated() {
    let mut rounds = Rounds::cruising();
    (rounds.model().inflight, rounds.model().too_high) = (80.0, true);
    rounds.model().start_refill();
    assert_eq!(rounds.round(1000.0, 79, 0, Repair::None), Mode::Up);
    assert_eq!(
        rounds.round(1000.0, 79, 0, Repair::None),
        Mode::Up,
        "the bound is raised to the flight of 100"
    );
    rounds.model().too_high = true;
    assert_eq!(rounds.round(1000.0, 200, 0, Repair::None), Mode::Down);
    assert_eq!(rounds.round(1000.0, 200, 0, Repair::None), Mode::Refill, "nothing was lost");
}
