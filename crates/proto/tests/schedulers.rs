//! What every scheduler owes every circuit, under a mix of circuits that wants to cheat it.

use proptest::prelude::*;
use tidegate_control::units::{Span, Time};
use tidegate_proto::scheduler::Kind;
use tidegate_proto::transport::DecayingCount;

const CIRCUITS: usize = 12;

proptest! {
    /// Circuits come, burst, fall silent, and are replaced by fresh ones with clean records. Whoever has
    /// cells gets its turn: no other circuit sends more than the waiting one's count and two cells before
    /// it. A fresh circuit is another circuit: who can begin circuits without end can hold up a loud one
    /// without end, which is what a limit on circuits per connection is for.
    #[test]
    fn no_circuit_waits_longer_than_its_count_times_the_others(
        half_life_ms in 10u64..100_000, ewma in any::<bool>(),
        steps in proptest::collection::vec((0usize..CIRCUITS, 1u32..40, 0u64..5_000, 0u8..10), 1..400),
    ) {
        let half_life = Span::from_millis(half_life_ms);
        let kind = if ewma { Kind::Ewma { half_life } } else { Kind::RoundRobin };
        let mut scheduler = kind.build();
        let mut now = Time::ZERO;
        let mut cells = [0u32; CIRCUITS];
        let mut counts = [DecayingCount::default(); CIRCUITS];
        // Of each circuit that waits: its count when it began to, and what each other one has sent since.
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
                    scheduler.activate(now, circuit as u32);
                    waits[circuit] = Some((counts[circuit].value(now, half_life), [0; CIRCUITS]));
                }
                cells[circuit] += burst;
            }
            let Some(key) = scheduler.next(now) else {
                prop_assert!(cells.iter().all(|left| *left == 0), "who has cells is served");
                if steps.len() == 0 {
                    break;
                }
                continue;
            };
            let key = key as usize;
            prop_assert!(cells[key] > 0, "who has none is not");
            cells[key] -= 1;
            counts[key].add(now, half_life, 1);
            scheduler.sent(now, key as u32, cells[key] > 0);
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
