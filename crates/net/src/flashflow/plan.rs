//! Who is measured when in a period, as it follows from the records.

use tidegate_control::flashflow::schedule::{Schedule, ScheduledRelay, Secret, group, guess_for_new};
use tidegate_control::units::Rate;

use super::config::{CoordinatorConfig, RelayEntry};
use super::ledger::Ledger;
use super::network::Network;
use super::record::Record;
use crate::identity::Identity;

/// The schedule of a period, from what was known when it began.
pub fn plan(
    config: &CoordinatorConfig,
    network: Option<&Network>,
    identity: &Identity,
    records: &[Record],
    period: u64,
) -> Schedule {
    let begin = period * (config.period.0 / 1_000_000_000);
    let mut ledger = Ledger::default();
    for record in records {
        // A second of a measurement that is left out here is not known; the store checked all records together.
        let known = matches!(record, Record::Second { .. }) || record.unix().is_some_and(|unix| unix < begin);
        if known && !matches!(record, Record::File { .. }) {
            let _ = ledger.apply(record);
        }
    }
    let known: Vec<Rate> = config
        .relays
        .iter()
        .filter_map(|r| ledger.good(&r.id, begin, config.expiry))
        .map(|g| g.estimate)
        .collect();
    let first = guess_for_new(&known).unwrap_or(config.first_guess);
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for entry in config.relays.iter().filter(|relay| !config.opt_out.contains(&relay.id)) {
        let next = ledger.history(&entry.id).and_then(|history| history.next_guess);
        let good = ledger.good(&entry.id, begin, config.expiry).map(|good| good.estimate);
        match next.or(good) {
            Some(guess) => old.push(as_relay(entry, guess)),
            // What the authorities vote for, where they do, is a better guess than any other's capacity.
            None => {
                let weight = network.and_then(|network| network.relays.get(&entry.id)).copied();
                new.push(as_relay(entry, weight.unwrap_or(first)));
            }
        }
    }
    let slots = (config.period.0 / config.slot.0) as u32;
    let secret = Secret::derive(&config.shared_random, &identity.schedule_secret(), period);
    let mut schedule = Schedule::new(slots, config.budget, config.parameters);
    schedule.place_old(&old, &secret);
    for group in group(&new, &config.parameters) {
        schedule.place_next(&group, 0);
    }
    schedule
}

/// A relay as the schedule knows it.
pub fn as_relay(entry: &RelayEntry, guess: Rate) -> ScheduledRelay {
    ScheduledRelay { id: entry.id, guess, address: entry.address.ip(), family: entry.family }
}
