//! Fairness of every scheduler, under traffic that tries to cheat it.

use proptest::prelude::*;
use tidegate_control::units::{Span, Time};
use tidegate_proto::registry::SCHEDULERS;
use tidegate_proto::scheduler::{Circuits, Discipline, Ewma, RoundRobin};
use tidegate_proto::transport::DecayingCount;

const CIRCUITS: usize = 12;

/// Queue lengths and decayed counts of circuits.
struct Seen<'a>(&'a [u32; CIRCUITS], &'a [DecayingCount; CIRCUITS], Span);

impl Circuits for Seen<'_> {
    fn count(&self) -> usize {
        CIRCUITS
    }
    fn queued(&self, key: u32) -> u32 {
        self.0[key as usize]
    }
    fn sent(&self, now: Time, key: u32) -> f64 {
        self.1[key as usize].value(now, self.2)
    }
}

/// Circuits do not wait forever for a later circuit that never ends.
#[test]
fn a_circuit_without_end_does_not_starve_others() {
    for part in SCHEDULERS {
        let mut scheduler = part.by_default().build();
        let (mut now, mut cells) = (Time::ZERO, [10; CIRCUITS]);
        let (counts, half_life) = ([DecayingCount::default(); CIRCUITS], Span::from_secs(30));
        for key in 0..CIRCUITS {
            scheduler.activate(now, key as u32, &Seen(&cells, &counts, half_life));
        }
        let endless = CIRCUITS - 1;
        // A minute at a thousand cells per second.
        for _ in 0..60_000 {
            now += Span::from_millis(1);
            cells[endless] = 1000;
            let key = scheduler.next(now, &Seen(&cells, &counts, half_life)).expect("one always has cells");
            cells[key as usize] -= 1;
            scheduler.sent(now, key, cells[key as usize] > 0, &Seen(&cells, &counts, half_life));
        }
        assert_eq!(cells[..endless], [0; CIRCUITS - 1], "{}: cells wait forever", part.name);
    }
}

/// A long queue does not wait forever for circuits that send a cell each time they are served.
#[test]
fn circuits_with_one_cell_each_do_not_starve_a_long_queue() {
    for part in SCHEDULERS {
        let mut scheduler = part.by_default().build();
        let (mut now, mut cells) = (Time::ZERO, [0; CIRCUITS]);
        let (mut counts, half_life) = ([DecayingCount::default(); CIRCUITS], Span::from_secs(30));
        let long = 0;
        cells[long] = 100;
        scheduler.activate(now, long as u32, &Seen(&cells, &counts, half_life));
        // Ten seconds at a thousand cells per second.
        for _ in 0..10_000 {
            now += Span::from_millis(1);
            for key in long + 1..CIRCUITS {
                if cells[key] == 0 {
                    cells[key] = 1;
                    scheduler.activate(now, key as u32, &Seen(&cells, &counts, half_life));
                }
            }
            let key =
                scheduler.next(now, &Seen(&cells, &counts, half_life)).expect("eleven always have cells");
            let at = key as usize;
            cells[at] -= 1;
            counts[at].add(now, half_life, 1);
            scheduler.sent(now, key, cells[at] > 0, &Seen(&cells, &counts, half_life));
        }
        assert_eq!(cells[long], 0, "{}: the long queue waits forever", part.name);
    }
}

proptest! {
    /// Every scheduler serves exactly the circuits that have cells, each within a bounded time while cells are sent at a
    /// steady rate.
    #[test]
    fn whoever_has_cells_is_served_and_in_time(
        which in 0..SCHEDULERS.len(),
        steps in proptest::collection::vec((0usize..CIRCUITS, 1u32..200), 1..200),
    ) {
        let name = SCHEDULERS[which].name;
        let mut scheduler = SCHEDULERS[which].by_default().build();
        let half_life = Span::from_secs(30);
        let (mut now, mut cells) = (Time::ZERO, [0u32; CIRCUITS]);
        let mut counts = [DecayingCount::default(); CIRCUITS];
        let mut since = [Time::NEVER; CIRCUITS];
        let mut steps = steps.into_iter();
        while steps.len() > 0 || cells.iter().any(|left| *left > 0) {
            if let Some((circuit, burst)) = steps.next() {
                let fresh = cells[circuit] == 0;
                cells[circuit] += burst;
                if fresh {
                    scheduler.activate(now, circuit as u32, &Seen(&cells, &counts, half_life));
                    since[circuit] = now;
                }
            }
            // A thousand cells per second.
            for _ in 0..20 {
                now += Span::from_millis(1);
                let Some(key) = scheduler.next(now, &Seen(&cells, &counts, half_life)) else {
                    prop_assert!(cells.iter().all(|left| *left == 0), "{name}: a circuit with cells is served");
                    continue;
                };
                let at = key as usize;
                prop_assert!(cells[at] > 0, "{name}: a circuit without cells is not");
                cells[at] -= 1;
                counts[at].add(now, half_life, 1);
                scheduler.sent(now, key, cells[at] > 0, &Seen(&cells, &counts, half_life));
                since[at] = if cells[at] > 0 { now } else { Time::NEVER };
                // EWMA lets a loud circuit wait until the others have sent as much: 2,400 cells here at most.
                let longest = since.iter().map(|since| now.since(*since)).max().unwrap_or_default();
                prop_assert!(longest <= Span::from_secs(40), "{name}: a circuit waits for {longest}");
            }
        }
    }

    /// Circuits burst, fall silent, and are replaced by fresh ones with a count of zero. While a circuit waits, no other
    /// circuit sends more than the waiting one's count and two cells.
    ///
    /// A replaced circuit counts as another one, so a peer that begins circuits without end can delay a loud circuit
    /// without end. The limit on circuits per connection prevents that.
    #[test]
    fn no_circuit_waits_longer_than_its_count_times_the_others(
        half_life_ms in 10u64..100_000, ewma in any::<bool>(),
        steps in proptest::collection::vec((0usize..CIRCUITS, 1u32..40, 0u64..5_000, 0u8..10), 1..400),
    ) {
        let half_life = Span::from_millis(half_life_ms);
        let mut scheduler = if ewma { Ewma { half_life }.build() } else { RoundRobin.build() };
        let mut now = Time::ZERO;
        let mut cells = [0u32; CIRCUITS];
        let mut counts = [DecayingCount::default(); CIRCUITS];
        // For each waiting circuit: its count when it began to wait, and the cells that the others have sent since.
        let mut waits: [Option<(f64, [u32; CIRCUITS])>; CIRCUITS] = [None; CIRCUITS];
        let mut steps = steps.into_iter();
        loop {
            if let Some((circuit, burst, wait_us, replace)) = steps.next() {
                now += Span::from_micros(wait_us);
                if replace == 0 {
                    scheduler.forget(circuit as u32);
                    cells[circuit] = 0;
                    counts[circuit] = DecayingCount::default();
                    waits[circuit] = None;
                    waits.iter_mut().flatten().for_each(|(_, sent)| sent[circuit] = 0);
                }
                if cells[circuit] == 0 {
                    scheduler.activate(now, circuit as u32, &Seen(&cells, &counts, half_life));
                    waits[circuit] = Some((counts[circuit].value(now, half_life), [0; CIRCUITS]));
                }
                cells[circuit] += burst;
            }
            let Some(key) = scheduler.next(now, &Seen(&cells, &counts, half_life)) else {
                prop_assert!(cells.iter().all(|left| *left == 0), "a circuit with cells is served");
                if steps.len() == 0 {
                    break;
                }
                continue;
            };
            let key = key as usize;
            prop_assert!(cells[key] > 0, "a circuit without cells is not");
            cells[key] -= 1;
            counts[key].add(now, half_life, 1);
            scheduler.sent(now, key as u32, cells[key] > 0, &Seen(&cells, &counts, half_life));
            let count = counts[key].value(now, half_life);
            waits[key] = (cells[key] > 0).then_some((count, [0; CIRCUITS]));
            for (waiting, wait) in waits.iter_mut().enumerate().filter(|(waiting, _)| *waiting != key) {
                let Some((count, sent)) = wait else { continue };
                sent[key] += 1;
                prop_assert!(f64::from(sent[key]) <= *count + 2.0, "{waiting} waits, {key} sent {}", sent[key]);
            }
        }
    }
}
