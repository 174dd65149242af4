//! Computes the schedule of a period from the records.

use std::collections::BTreeSet;

use tidegate_control::flashflow::schedule::{Group, Schedule, ScheduledRelay, Secret, group, guess_for_new};
use tidegate_control::units::Rate;

use super::config::{CoordinatorConfig, RelayEntry};
use super::ledger::Ledger;
use super::network::Network;
use super::record::Record;
use crate::identity::Identity;

/// Lowest guess for a relay, so that the team sends something.
const LEAST_GUESS: Rate = Rate(1_000_000);

/// The schedule of a period, from the records at its beginning.
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
        // A second of a measurement that was left out is unknown here; the store checked all records together.
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
    let (mut relays, mut old) = (Vec::new(), BTreeSet::new());
    for entry in config.relays.iter().filter(|relay| !config.opt_out.contains(&relay.id)) {
        let next = ledger.history(&entry.id).and_then(|history| history.next_guess);
        let good = ledger.good(&entry.id, begin, config.expiry).map(|good| good.estimate);
        let guess = next.or(good);
        old.extend(guess.map(|_| entry.id));
        // The consensus weight is a better guess than the percentile of other relays' capacities.
        let listed = network.and_then(|network| network.relays.get(&entry.id));
        let weight = listed.map_or(first, |listed| listed.weight);
        relays.push(as_relay(entry, guess.unwrap_or(weight)));
    }
    // A new relay on a known machine or in a known family waits for their slot, so that it cannot use their
    // machine alone.
    let known = |group: &Group| group.relays.iter().any(|relay| old.contains(&relay.id));
    let (known, new): (Vec<Group>, Vec<Group>) =
        group(&relays, &config.parameters).into_iter().partition(known);
    let known: Vec<ScheduledRelay> = known.into_iter().flat_map(|group| group.relays).collect();
    let slots = (config.period.0 / config.slot.0) as u32;
    let secret = Secret::derive(&config.shared_random, &identity.schedule_secret(), period);
    let mut schedule = Schedule::new(slots, config.budget, config.parameters);
    schedule.place_old(&known, &secret);
    for group in &new {
        schedule.place_next(group, 0);
    }
    schedule
}

/// A relay for the scheduler.
pub(crate) fn as_relay(entry: &RelayEntry, guess: Rate) -> ScheduledRelay {
    // A team needs a part of its rate even where the last estimate or the weight is 0.
    ScheduledRelay {
        id: entry.id,
        guess: guess.max(LEAST_GUESS),
        address: entry.address.ip(),
        family: entry.family,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::flashflow::MeasurementParameters;

    use super::super::config::ConfigFile as _;
    use super::*;
    use crate::identity::{hex, random};
    use tidegate_control::flashflow::bandwidth_file::relay_name;

    /// The coordinator measured `r0` before. `r9` joins its machine; the others are new, each at its own
    /// address.
    #[test]
    fn a_new_relay_on_a_known_machine_is_measured_with_its_neighbours() {
        let folder = std::env::temp_dir().join(format!("tidegate-plan-{}", hex(&random::<8>())));
        std::fs::create_dir(&folder).unwrap();
        let identity = Identity::generate();
        identity.save(&folder.join("c.key")).unwrap();
        let relay = |n: u8, address: u8| {
            format!(
                "[[relay]]\nnickname = \"r{n}\"\nid = \"{0}\"\naddress = \"192.0.2.{address}:9001\"\n\
                 fingerprint = \"{1}\"\nonion-key = \"{1}\"\n",
                hex(&[n; 20]),
                "aa".repeat(32)
            )
        };
        let relays: String = (0..9).map(|n| relay(n, n + 1)).chain([relay(9, 1)]).collect();
        let text = format!(
            "identity = \"c.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nfirst-guess = \"10 Mbit/s\"\n\
             [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{}\"\ncapacity = \"60 Mbit/s\"\n{relays}",
            "bb".repeat(32)
        );
        let file = folder.join("c.toml");
        std::fs::write(&file, text).unwrap();
        let config = CoordinatorConfig::load(&file).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let (id, parameters) = (String::from("a"), MeasurementParameters::default());
        let records = [
            Record::Attempt {
                id: id.clone(),
                unix: 10,
                relay: relay_name(&[0; 20]),
                guess: 1_600_000,
                allocated: parameters.demand(Rate(1_600_000)).0,
                parameters: (&parameters).into(),
            },
            Record::Second { id: id.clone(), second: 1, measurers: vec![100_000; 2], sent: 0, received: 0 },
            Record::Result { id, unix: 12, estimate: 1_600_000, conclusive: true, checked: 9 },
        ];
        for period in 1..20 {
            let schedule = plan(&config, None, &identity, &records, period);
            let slot = |n: u8| {
                let placed = schedule.placements().iter().find(|placement| placement.relay == [n; 20]);
                placed.expect("everybody finds a slot").slot
            };
            assert_eq!(slot(9), slot(0), "period {period}");
            assert!(slot(1) < 10, "a newcomer of its own comes first");
        }
    }
}
