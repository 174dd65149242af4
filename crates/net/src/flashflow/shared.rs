//! In-memory state of a running coordinator, for its daemon and its status page.

use std::collections::BTreeMap;

use tidegate_control::flashflow::schedule::{RelayId, Schedule, ScheduledRelay, group, guess_for_new};
use tidegate_control::units::{Rate, Time};
use tidegate_data::document::DataError;

use super::config::{ConfigFile as _, CoordinatorConfig, MeasurerEntry, RelayEntry, Target};
use super::ledger::Ledger;
use super::listed::inform;
use super::network::Network;
use super::plan::as_relay;
use super::record::{Described, Record};
use super::store::Store;
use crate::clock::{self, Calendar};
use tidegate_control::flashflow::bandwidth_file::relay_name;

/// A running measurement, for the status page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    /// Nickname of the relay.
    pub relay: String,
    /// How it is measured: `Target::name`.
    pub target: &'static str,
    /// Number of complete seconds.
    pub seconds: u16,
    /// Rates of the last second in bits per second: measurement, background.
    pub last: (u64, u64),
}

/// In-memory state of the daemon, shared with its status page.
pub struct CoordinatorState {
    /// The configuration.
    pub config: CoordinatorConfig,
    /// The consensus, if one is read. The configured relays are then the listed ones.
    pub network: Option<Network>,
    /// Results and attempts of all relays.
    pub ledger: Ledger,
    /// The current period's schedule.
    pub schedule: Schedule,
    /// Number of the current period and of its current slot.
    pub position: (u64, u32),
    /// Running measurements, by token.
    pub(crate) current: BTreeMap<String, Current>,
    /// The last failures: Unix time, relay, reason.
    pub errors: Vec<(u64, String, String)>,
    /// Unix time at which the daemon started.
    pub started: u64,
    /// Whether the kill switch is on.
    pub stopped: bool,
    /// The calendar clock.
    pub(super) calendar: Calendar,
    /// Reference for the age of records: the last record's time and the monotonic time of reading it.
    ///
    /// The calendar may be wrong, and must not make records old enough to be deleted.
    pub(super) aging: (u64, Time),
    /// The record store.
    pub(super) store: Store,
    /// The first error of the store; no more measurements start after it, and nothing more is stored.
    pub(super) broken: Option<std::io::Error>,
    /// Measurers that do not answer, by name, and until when others measure without them.
    pub(super) absent: BTreeMap<String, Time>,
}

impl CoordinatorState {
    /// Stores a record and applies it to the ledger.
    pub(super) fn record(&mut self, record: &Record) {
        // A record after a missing one would contradict those before it, and the next start would fail.
        if self.broken.is_none()
            && let Err(cause) = self.store.append(record)
        {
            self.broken = Some(cause);
        }
        self.ledger.apply(record).expect("we record only what follows from what we recorded");
    }

    /// The free capacity of each measurer; that of one that does not answer is zero.
    pub(super) fn team(&self) -> Vec<Rate> {
        let now = clock::now();
        let absent = |name: &str| self.absent.get(name).is_some_and(|until| now < *until);
        let capacity = |m: &MeasurerEntry| if absent(&m.name) { Rate(0) } else { m.capacity };
        self.config.measurers.iter().map(capacity).collect()
    }

    /// The guess for a relay, and whether it comes from the relay's own measurements.
    ///
    /// It is the next guess after an inconclusive result, the last estimate, the consensus weight, or the 75th
    /// percentile.
    pub(super) fn guess(&self, id: &RelayId, now: u64) -> (Rate, bool) {
        let expiry = self.config.expiry;
        if let Some(next) = self.ledger.history(id).and_then(|history| history.next_guess) {
            return (next, true);
        }
        if let Some(good) = self.ledger.good(id, now, expiry) {
            return (good.estimate, true);
        }
        if let Some(listed) = self.network.as_ref().and_then(|network| network.relays.get(id)) {
            return (listed.weight, false);
        }
        let known: Vec<Rate> = self
            .config
            .relays
            .iter()
            .filter_map(|relay| self.ledger.good(&relay.id, now, expiry))
            .map(|good| good.estimate)
            .collect();
        (guess_for_new(&known).unwrap_or(self.config.first_guess), false)
    }

    /// Reloads the configuration and the network at the start of a period.
    ///
    /// After an error everything stays as it was, with a warning in the log.
    pub(super) fn learn(&mut self) {
        let warn = |cause: String| tracing::warn!(cause, "warning");
        let mut fresh = match CoordinatorConfig::load(&self.config.path) {
            Ok(fresh) => fresh,
            Err(cause) => return warn(cause.to_string()),
        };
        for key in self.config.needing_a_restart(&fresh) {
            tracing::warn!(key, cure = "restart the coordinator", "not changed");
        }
        let consented = fresh.relays.len();
        match network(&mut fresh, self.unix()) {
            Ok(network) => {
                say_network(network.as_ref(), consented, &fresh);
                let CoordinatorConfig { relays, opt_out, shared_random, .. } = fresh;
                (self.config.relays, self.config.opt_out) = (relays, opt_out);
                (self.config.shared_random, self.network) = (shared_random, network);
            }
            Err(cause) => warn(cause.to_string()),
        }
    }

    /// Calendar time, in seconds since 1970.
    pub(crate) fn unix(&self) -> u64 {
        self.calendar.unix()
    }

    /// Places the relays in as few slots as possible.
    pub(super) fn plan_at_once(&mut self, relays: &[RelayId], now: u64) -> Schedule {
        let entries = self.config.relays.iter().filter(|entry| relays.contains(&entry.id));
        let relays: Vec<ScheduledRelay> =
            entries.map(|entry| as_relay(entry, self.guess(&entry.id, now).0)).collect();
        let mut schedule = Schedule::new(relays.len() as u32, self.config.budget, self.config.parameters);
        for group in group(&relays, &self.config.parameters) {
            schedule.place_next(&group, 0);
        }
        self.schedule = schedule.clone();
        schedule
    }

    pub(super) fn described(&self) -> Vec<Described> {
        let describe = |relay: &RelayEntry| Described {
            relay: relay_name(&relay.id),
            nickname: relay.nickname.clone(),
            descriptor_limit: relay.descriptor_limit.map(|limit| limit.0),
            stock: relay.target == Target::Stock,
        };
        self.config.relays.iter().map(describe).collect()
    }
}

/// Reads the network, if configured, and updates the configured relays and the shared random value.
///
/// # Errors
/// As `NetworkSource::read`.
pub fn network(config: &mut CoordinatorConfig, unix: u64) -> Result<Option<Network>, DataError> {
    let Some(source) = &config.network else { return Ok(None) };
    let network = source.read(unix)?;
    inform(&network, &mut config.relays);
    if !network.shared_random.is_empty() {
        config.shared_random.clone_from(&network.shared_random);
    }
    Ok(Some(network))
}

/// Logs the state of the network; `consented` is the number of configured relays.
pub(super) fn say_network(network: Option<&Network>, consented: usize, config: &CoordinatorConfig) {
    let Some(network) = network else { return };
    tracing::info!(
        valid_after = network.valid_after,
        relays = network.relays.len(),
        signatures = network.signatures,
        consented,
        listed = config.relays.len(),
        "network"
    );
}
