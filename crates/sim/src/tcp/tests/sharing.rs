//! Connections that share a bottleneck: how much is in flight, and how they divide the rate.

use std::collections::BTreeMap;

use crate::tcp::pair::{Link, LinkRule};
use crate::tcp::{Config, Congestion, Endpoint, Segment};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

/// A sender and its receiver.
struct Flow {
    config: Config,
    ends: [Endpoint; 2],
    /// The link of the acknowledgements.
    back: Link,
}

/// What is due: a segment for an end of a flow, or a look at the timer of an end.
type Due = (usize, usize, Option<Segment>);

/// Endless flows over one link.
struct Bottleneck {
    flows: Vec<Flow>,
    link: Link,
    due: BTreeMap<(Time, u64), Due>,
    events: u64,
}

/// Goodput and flight of a flow between two times.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Payload, Mbit/s.
    goodput: f64,
    /// Segments in flight, mean.
    in_flight: f64,
}

impl Bottleneck {
    fn new(rule: LinkRule, kinds: &[Congestion]) -> Bottleneck {
        let back = LinkRule { queue: 10_000, loss: 0.0, ..rule };
        let flow = |(at, congestion): (usize, &Congestion)| {
            let config = Config { congestion: *congestion, ..Config::default() };
            let ends = [Endpoint::active(&config), Endpoint::passive(&config)];
            Flow { config, ends, back: Link::new(back, Seed::root(at as u64)) }
        };
        let flows = kinds.iter().enumerate().map(flow).collect();
        let link = Link::new(rule, Seed::root(1));
        Bottleneck { flows, link, due: BTreeMap::new(), events: 0 }
    }

    fn push(&mut self, at: Time, due: Due) {
        self.events += 1;
        self.due.insert((at, self.events), due);
    }

    /// Lets an end act at a time.
    fn drive(&mut self, now: Time, flow: usize, end: usize) {
        let Flow { config, ends, .. } = &mut self.flows[flow];
        let tcp = &mut ends[end];
        let there = tcp.readable();
        tcp.read(config, now, there);
        if end == 0 {
            tcp.write(u64::MAX);
        }
        loop {
            let Flow { config, ends, back } = &mut self.flows[flow];
            let Some(segment) = ends[end].poll_transmit(config, now) else { break };
            let link = if end == 0 { &mut self.link } else { back };
            let arrivals = link.carry(now, u64::from(segment.len + config.header_bytes));
            for arrival in arrivals.into_iter().flatten() {
                self.push(arrival, (flow, 1 - end, Some(segment)));
            }
        }
        let timeout = self.flows[flow].ends[end].next_timeout();
        if timeout != Time::NEVER {
            self.push(timeout.max(now), (flow, end, None));
        }
    }

    /// Runs from a second to another; the flows begin one after the other in the first one.
    fn run(&mut self, from: u64, until: u64) -> Vec<Share> {
        let seconds = |s: u64| Time::ZERO + Span::from_secs(s);
        for flow in 0..self.flows.len() {
            let start = Time::ZERO + Span::from_millis(100 * flow as u64);
            self.flows[flow].ends[0].connect(start);
            self.push(start, (flow, 0, None));
        }
        let mut shares = vec![Share { goodput: 0.0, in_flight: 0.0 }; self.flows.len()];
        let (mut looks, mut next_look) = (0.0, seconds(from));
        while let Some(((now, _), (flow, end, segment))) = self.due.pop_first() {
            while next_look <= now.min(seconds(until)) {
                for (flow, share) in self.flows.iter().zip(&mut shares) {
                    let got = flow.ends[1].delivered_in_order() as f64 * 8e-6;
                    if looks == 0.0 {
                        share.goodput = -got;
                    }
                    share.in_flight += f64::from(flow.ends[0].info(&flow.config).unacked);
                }
                looks += 1.0;
                next_look += Span::from_millis(10);
            }
            if now > seconds(until) {
                break;
            }
            let Flow { config, ends, .. } = &mut self.flows[flow];
            let tcp = &mut ends[end];
            match segment {
                Some(segment) => drop(tcp.on_segment(config, now, &segment)),
                None if tcp.next_timeout() <= now => tcp.on_timeout(config, now),
                None if now.since(Time::ZERO) >= Span::from_secs(1) => continue,
                None => {}
            }
            self.drive(now, flow, end);
        }
        for (flow, share) in self.flows.iter().zip(&mut shares) {
            share.goodput += flow.ends[1].delivered_in_order() as f64 * 8e-6;
            share.goodput /= (until - from) as f64;
            share.in_flight /= looks;
        }
        shares
    }
}

/// Two flows over 20 Mbit/s and 40 ms, a product of 67 segments, from the fifth to the 35th second.
fn share(queue: usize, loss: f64, kinds: [Congestion; 2]) -> [Share; 2] {
    let rule = LinkRule::new(Rate(20_000_000), Span::from_millis(20), queue).with_loss(loss);
    let shares = Bottleneck::new(rule, &kinds).run(5, 35);
    [shares[0], shares[1]]
}

#[test]
fn at_one_percent_of_loss_two_flows_of_bbr3_keep_less_in_flight_than_two_of_bbr() {
    let [first, third] = [Congestion::Bbr, Congestion::Bbr3].map(|kind| {
        let [a, b] = share(140, 0.01, [kind; 2]);
        assert!(a.goodput.min(b.goodput) > 0.4 * (a.goodput + b.goodput), "{kind:?}: {a:?} {b:?}");
        (a.in_flight + b.in_flight, a.goodput + b.goodput)
    });
    assert!(third.0 < 0.6 * first.0 && third.1 > 0.9 * first.1, "BBR {first:?}, third version {third:?}");
}

#[test]
fn with_a_short_queue_cubic_gets_more_beside_bbr3_than_beside_bbr() {
    let [first, third] = [Congestion::Bbr, Congestion::Bbr3].map(|kind| {
        let [bbr, cubic] = share(35, 0.0, [kind, Congestion::Cubic]);
        assert!(bbr.goodput + cubic.goodput > 18.0, "{kind:?}: {bbr:?} {cubic:?}");
        cubic.goodput
    });
    assert!(
        third > 3.0 * first && third > 6.0,
        "beside BBR {first} Mbit/s, beside the third version {third}"
    );
}
