//! The coordinator's daemon: schedules a period, measures in slots, and writes the bandwidth file after each
//! slot.
//!
//! Every step goes to the store first. After a crash at any moment the daemon continues in mid-period.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tidegate_control::flashflow::quota::PER_PERIOD;
use tidegate_control::flashflow::schedule::{Group, Placement, RelayId, group};
use tidegate_control::flashflow::{Verdict, allocate, share_sockets};
use tidegate_control::units::{Rate, Span};
use tidegate_data::document::DataError;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::flashflow::coordinator::{Failure, Order, Outcome, Peer, SecondRecord, Timeouts};
use tidegate_proto::flashflow::{MeasurerId, Open, Params, Reason};
use tokio::sync::watch;

use super::config::{CoordinatorConfig, RelayEntry, Target};
use super::coordinator::{Unmeasured, measure};
use super::ledger::{BY_RELAY, Ledger};
use super::plan::{as_relay, plan};
use super::record::Record;
use super::shared::{CoordinatorState, Current, network, say_network};
use super::store::{self, Store, StoreError};
use super::{publish, stock};
use crate::clock::{self, Calendar};
use crate::identity::{Contact, Identity, IdentityError, digest, hex, random};
use tidegate_control::flashflow::bandwidth_file::relay_name;

/// Reason why the daemon cannot start or must stop.
#[derive(Debug)]
pub enum DaemonError {
    /// The identity file cannot be used.
    Identity(IdentityError),
    /// The state cannot be used.
    Store(StoreError),
    /// The consensus cannot be read or verified.
    Network(DataError),
    /// A record or the bandwidth file cannot be written.
    Disk(std::io::Error),
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonError::Identity(cause) => cause.fmt(f),
            DaemonError::Store(cause) => cause.fmt(f),
            DaemonError::Network(cause) => cause.fmt(f),
            DaemonError::Disk(cause) => {
                write!(f, "cannot write {cause}; what is stored stays, so start it again when there is space")
            }
        }
    }
}

impl std::error::Error for DaemonError {}

impl From<std::io::Error> for DaemonError {
    fn from(cause: std::io::Error) -> DaemonError {
        DaemonError::Disk(cause)
    }
}

/// Number of dated bandwidth files to keep.
const FILES: usize = 100;
/// How long others measure without a measurer that does not answer. A slot in ten minutes fails because of it.
const ABSENT: Span = Span::from_secs(600);
/// Number of failures on the status page.
const SHOWN_ERRORS: usize = 20;

/// The coordinator's daemon. Clones are handles to the same daemon.
#[derive(Clone)]
pub struct Daemon {
    identity: Rc<Identity>,
    shared: Rc<RefCell<CoordinatorState>>,
    stop: watch::Sender<bool>,
}

impl Daemon {
    /// Opens the state and plans the current period.
    ///
    /// # Errors
    /// [`DaemonError`] if the identity, the state or the network cannot be used.
    pub fn open(mut config: CoordinatorConfig) -> Result<Daemon, DaemonError> {
        let identity = Identity::load(&config.identity).map_err(DaemonError::Identity)?;
        let calendar = Calendar::new(config.period);
        let started = calendar.unix();
        let consented = config.relays.len();
        let network = network(&mut config, started).map_err(DaemonError::Network)?;
        say_network(network.as_ref(), consented, &config);
        let (mut store, records) = Store::open(&config.state).map_err(DaemonError::Store)?;
        let record = Record::Started {
            unix: started,
            version: env!("CARGO_PKG_VERSION").into(),
            fresh: records.is_empty(),
        };
        store.append(&record)?;
        // The ledger must see this start too: it fails interrupted measurements.
        let mut ledger = Ledger::default();
        for record in records.iter().chain([&record]) {
            ledger.apply(record).expect("the store checked them");
        }
        if ledger.ahead_of_clock() > 0 {
            let cause = "records with times in the future are ignored: the clock is wrong now, or was when they were written";
            tracing::warn!(cause, ignored = ledger.ahead_of_clock(), "warning");
        }
        let newest = records.iter().filter_map(Record::unix).filter(|unix| *unix <= started).max();
        let period = started / (config.period.0 / 1_000_000_000);
        let schedule = plan(&config, network.as_ref(), &identity, &records, period);
        tracing::info!(records = records.len(), period, placements = schedule.placements().len(), "started");
        let shared = CoordinatorState {
            config,
            network,
            ledger,
            schedule,
            position: (period, 0),
            current: BTreeMap::new(),
            errors: Vec::new(),
            started,
            stopped: false,
            calendar,
            aging: (newest.unwrap_or(started), clock::now()),
            store,
            broken: None,
            absent: BTreeMap::new(),
        };
        let stop = watch::Sender::new(false);
        Ok(Daemon { identity: Rc::new(identity), shared: Rc::new(RefCell::new(shared)), stop })
    }

    /// State for the status page.
    pub fn shared(&self) -> Rc<RefCell<CoordinatorState>> {
        self.shared.clone()
    }

    /// Measures every relay now, in as few slots as possible, and writes the bandwidth file.
    ///
    /// Measurements are repeated as often as needed and allowed. Returns the relays without a complete measurement
    /// now and without a current result, each with the reason if it was not asked.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn run_once(&self) -> Result<Vec<String>, DaemonError> {
        let now = self.shared.borrow().unix();
        let mut waiting: Vec<RelayId> = {
            let shared = self.shared.borrow();
            let config = &shared.config;
            config.relays.iter().map(|r| r.id).filter(|id| !config.opt_out.contains(id)).collect()
        };
        let all = waiting.clone();
        let period_s = self.shared.borrow().config.period.0 / 1_000_000_000;
        let spent = |shared: &CoordinatorState, id: &RelayId| {
            shared.ledger.attempts_since(id, now.saturating_sub(period_s)) >= PER_PERIOD
        };
        let used_up: Vec<RelayId> = {
            let shared = self.shared.borrow();
            all.iter().copied().filter(|id| spent(&shared, id)).collect()
        };
        let measured = |shared: &CoordinatorState, id: &RelayId| {
            shared.ledger.history(id).is_some_and(|h| h.successes.last().is_some_and(|unix| *unix >= now))
        };
        // Relays refuse further measurements in a period, so more rounds are useless. Failures of measurers do not
        // count; each costs one round.
        let rounds = PER_PERIOD + self.shared.borrow().config.measurers.len();
        for _ in 0..rounds {
            let slots = self.shared.borrow_mut().plan_at_once(&waiting, now);
            for slot in 0..slots.slots() {
                self.shared.borrow_mut().position.1 = slot;
                self.run_slot(slots.in_slot(slot).cloned().collect()).await?;
            }
            let shared = self.shared.borrow();
            let again = |id: &RelayId| shared.ledger.history(id).is_some_and(|h| h.next_guess.is_some());
            waiting.retain(|id| again(id) || !measured(&shared, id));
            if waiting.is_empty() || shared.stopped {
                break;
            }
        }
        self.write_file()?;
        let shared = self.shared.borrow();
        let missing =
            shared.config.relays.iter().filter(|r| all.contains(&r.id) && !measured(&shared, &r.id));
        let kept = |relay: &RelayEntry| used_up.contains(&relay.id);
        let name = |relay: &RelayEntry| Some(relay.nickname.clone());
        Ok(missing
            .filter_map(|relay| if kept(relay) { why_missing(&shared, relay, now) } else { name(relay) })
            .collect())
    }

    /// Follows the schedule until the process ends.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn run(&self) -> Result<(), DaemonError> {
        let (slot_s, period_s, slots) = {
            let config = &self.shared.borrow().config;
            let (slot, period) = (config.slot.0 / 1_000_000_000, config.period.0 / 1_000_000_000);
            (slot, period, (period / slot) as u32)
        };
        self.catch_up(slots, slot_s, period_s);
        // A slot never runs twice, even if the calendar is set back.
        let mut done = None;
        let mut refused = false;
        loop {
            let unix = self.shared.borrow().unix();
            self.watch_clock(&mut refused);
            let here = (unix / period_s, ((unix % period_s) / slot_s) as u32);
            if done.is_none_or(|done| here > done) && here.1 < slots {
                self.begin_slot(here)?;
                let placements: Vec<Placement> =
                    self.shared.borrow().schedule.in_slot(here.1).cloned().collect();
                if !placements.is_empty() {
                    self.run_slot(placements).await?;
                    self.write_file()?;
                }
                done = Some(here);
            }
            self.watch_kill_switch();
            clock::until(clock::now() + Span::from_millis(500)).await;
        }
    }

    fn watch_clock(&self, said: &mut bool) {
        let shared = self.shared.borrow();
        let refused = shared.calendar.refused();
        if refused.is_some() != *said {
            *said = refused.is_some();
            let cause = if *said {
                "the clock jumped by more than a period and is ignored; if the new time is right, restart the \
                 coordinator"
            } else {
                "the clock is within a period again"
            };
            tracing::warn!(refused_unix = refused, unix = shared.unix(), cause, "clock");
        }
    }

    /// Reschedules relays that missed their slots while the daemon was down.
    fn catch_up(&self, slots: u32, slot_s: u64, period_s: u64) {
        let mut shared = self.shared.borrow_mut();
        let unix = shared.unix();
        let (begin, now) = (unix / period_s * period_s, ((unix % period_s) / slot_s) as u32);
        let missed: Vec<Placement> = shared
            .schedule
            .placements()
            .iter()
            .filter(|p| p.slot < now && shared.ledger.attempts_since(&p.relay, begin) == 0)
            .cloned()
            .collect();
        for placement in missed {
            if let Some(group) = self.alone(&shared, &placement.relay, placement.guess) {
                shared.schedule.place_next(&group, (now + 1).min(slots));
            }
        }
    }

    fn alone(&self, shared: &CoordinatorState, id: &RelayId, guess: Rate) -> Option<Group> {
        let entry = shared.config.relays.iter().find(|relay| relay.id == *id)?;
        group(&[as_relay(entry, guess)], &shared.config.parameters).pop()
    }

    fn begin_slot(&self, here: (u64, u32)) -> Result<(), DaemonError> {
        let mut shared = self.shared.borrow_mut();
        if here.0 != shared.position.0 {
            let records = store::read(&shared.config.state).map_err(DaemonError::Store)?;
            shared.learn();
            shared.schedule = plan(&shared.config, shared.network.as_ref(), &self.identity, &records, here.0);
            let (last, since) = shared.aging;
            let unix = last + clock::now().since(since).0 / 1_000_000_000;
            let retention = shared.config.retention;
            let forgotten = shared.store.forget(unix, retention);
            let forgotten = forgotten.map_err(DaemonError::Store)?;
            let placements = shared.schedule.placements().len();
            tracing::info!(period = here.0, placements, records_deleted = forgotten, "period");
        }
        shared.position = here;
        Ok(())
    }

    fn watch_kill_switch(&self) {
        let mut shared = self.shared.borrow_mut();
        let on = shared.config.kill_switch.exists();
        if on != shared.stopped {
            shared.stopped = on;
            tracing::warn!(on, "kill-switch");
            self.stop.send_replace(on);
        }
    }

    /// Makes all measurements of a slot at the same time.
    async fn run_slot(&self, placements: Vec<Placement>) -> Result<(), DaemonError> {
        self.watch_kill_switch();
        let mut tasks = tokio::task::JoinSet::new();
        {
            let shared = self.shared.borrow();
            let mut left: Vec<Rate> = shared.team();
            let mut left_for_stock: Vec<Rate> = shared.config.stock.iter().map(|s| s.capacity).collect();
            let begin = shared.unix().saturating_sub(shared.config.period.0 / 1_000_000_000);
            for placement in placements {
                let refused = shared.stopped
                    || shared.config.opt_out.contains(&placement.relay)
                    || shared.ledger.attempts_since(&placement.relay, begin) >= PER_PERIOD;
                let entry = shared.config.relays.iter().find(|relay| relay.id == placement.relay);
                let (false, Some(entry)) = (refused, entry) else { continue };
                let left = if entry.target == Target::Stock { &mut left_for_stock } else { &mut left };
                // The reservation fits the budget, but rounding may ask for slightly more than is left.
                let all = Rate(left.iter().map(|rate| rate.0).sum());
                if all.0 == 0 {
                    // A reload adds relays, but not the table [stock].
                    let cause = match entry.target {
                        Target::Stock if shared.config.stock.is_none() => {
                            "the coordinator started without [stock]"
                        }
                        _ => "no measurer answers",
                    };
                    tracing::warn!(relay = entry.nickname, cause, "not measured");
                    continue;
                }
                let Some(shares) = allocate(left, placement.reserved.min(all)) else { continue };
                left.iter_mut().zip(&shares).for_each(|(left, share)| left.0 -= share.0);
                let (daemon, entry) = (self.clone(), entry.clone());
                tasks.spawn_local(async move { daemon.attempt(entry, placement, shares).await });
            }
        }
        while !tasks.is_empty() {
            tokio::select! {
                _ = tasks.join_next() => {}
                () = clock::until(clock::now() + Span::from_millis(500)) => self.watch_kill_switch(),
            }
        }
        match self.shared.borrow_mut().broken.take() {
            Some(cause) => Err(cause.into()),
            None => Ok(()),
        }
    }

    async fn attempt(&self, entry: RelayEntry, placement: Placement, shares: Vec<Rate>) {
        let token: [u8; 16] = random();
        let id = hex(&token);
        let allocated = Rate(shares.iter().map(|share| share.0).sum());
        {
            let mut shared = self.shared.borrow_mut();
            let parameters = (&shared.config.parameters).into();
            let (unix, relay) = (shared.unix(), relay_name(&entry.id));
            shared.record(&Record::Attempt {
                id: id.clone(),
                unix,
                relay,
                guess: placement.guess.0,
                allocated: allocated.0,
                parameters,
            });
            let (relay, target) = (entry.nickname.clone(), entry.target.name());
            let current = Current { relay, target, ..Current::default() };
            shared.current.insert(id.clone(), current);
            tracing::info!(
                id,
                relay = entry.nickname,
                guess_bits_per_s = placement.guess.0,
                allocated_bits_per_s = allocated.0,
                target = entry.target.name(),
                "attempt"
            );
        }
        // No borrow of the shared state may live across an await.
        let on_second = |number: u16, second: &SecondRecord| self.keep_second(&id, number, second);
        let stop = self.stop.subscribe();
        let (result, names) = match &entry.target {
            Target::Flashflow(fingerprint, keys) => {
                let relay = Contact { address: entry.address, fingerprint: *fingerprint };
                let (order, contacts, names) = self.order(relay, keys, &shares, token);
                (measure(&self.identity, relay, &contacts, order, stop, on_second).await, names)
            }
            Target::Stock => {
                let (stock, seconds) = {
                    let config = &self.shared.borrow().config;
                    (config.stock.clone(), (config.parameters.duration.0 / 1_000_000_000) as u16)
                };
                let stock = stock.expect("the configuration was checked for [stock]");
                let result = stock::measure(&stock, &entry.id, allocated, seconds, stop, on_second).await;
                (result.map_err(Unmeasured::from), vec!["tor".to_owned()])
            }
        };
        self.conclude(&id, &entry, &placement, allocated, &names, result);
    }

    fn order(
        &self,
        relay: Contact,
        keys: &RelayPublic,
        shares: &[Rate],
        token: [u8; 16],
    ) -> (Order, Vec<Contact>, Vec<String>) {
        let shared = self.shared.borrow();
        let config = &shared.config;
        let p = &config.parameters;
        let seconds = (p.duration.0 / 1_000_000_000) as u16;
        let sockets = share_sockets(p.sockets, shares);
        // Measurers without a share are not told of the measurement.
        let taking_part: Vec<usize> = (0..shares.len()).filter(|&i| shares[i].0 > 0).collect();
        let ids = taking_part.iter().map(|&i| &config.measurers[i]);
        let opens = taking_part.iter().map(|&i| Open {
            token,
            seconds,
            sockets: sockets[i],
            rate: shares[i].0,
            check_one_in: p.check_one_in,
            address: relay.address,
            fingerprint: relay.fingerprint,
            relay: *keys,
        });
        let measurers = ids
            .clone()
            .map(|m| MeasurerId { fingerprint: m.contact().fingerprint, address: m.source })
            .collect();
        let order = Order {
            params: Params { token, seconds, background: p.background.get(), measurers },
            shares: opens.collect(),
            ratio: p.background,
            timeouts: Timeouts::default(),
        };
        (order, ids.clone().map(|m| m.contact()).collect(), ids.map(|m| m.name.clone()).collect())
    }

    fn keep_second(&self, id: &str, number: u16, second: &SecondRecord) {
        let mut shared = self.shared.borrow_mut();
        shared.record(&Record::Second {
            id: id.into(),
            second: number,
            measurers: second.measurers.clone(),
            sent: second.sent,
            received: second.received,
        });
        // The page and the log show what counts for the estimate, with the claim clamped.
        let counted = second.second(shared.config.parameters.background);
        let last = (counted.measurement * 8, counted.background * 8);
        let relay = shared.current.get_mut(id).map(|current| {
            (current.seconds, current.last) = (number, last);
            current.relay.clone()
        });
        tracing::info!(
            id,
            relay,
            second = number,
            measurement_bits_per_s = last.0,
            background_bits_per_s = last.1,
            sum_bits_per_s = last.0 + last.1,
            background_claimed_bits_per_s = counted.claimed * 8,
            "second"
        );
    }

    fn conclude(
        &self,
        id: &str,
        entry: &RelayEntry,
        placement: &Placement,
        allocated: Rate,
        names: &[String],
        result: Result<Outcome, Unmeasured>,
    ) {
        let mut shared = self.shared.borrow_mut();
        shared.current.remove(id);
        match result {
            Ok(outcome) => {
                let verdict = shared.config.parameters.judge(outcome.estimate, placement.guess, allocated);
                let bounds = shared.config.parameters.bounds(outcome.estimate);
                let conclusive = matches!(verdict, Verdict::Conclusive(_));
                let (estimate, checked, unix) = (outcome.estimate.0, outcome.checked, shared.unix());
                shared.record(&Record::Result { id: id.into(), unix, estimate, conclusive, checked });
                tracing::info!(
                    id,
                    relay = entry.nickname,
                    estimate_bits_per_s = estimate,
                    conclusive,
                    low_bits_per_s = bounds.low.0,
                    high_bits_per_s = bounds.high.0,
                    allocated_bits_per_s = allocated.0,
                    cells_checked = checked,
                    "result"
                );
                if let Verdict::Again { guess } = verdict {
                    self.again(&mut shared, &entry.id, guess);
                }
            }
            Err(failed) => {
                note_failure(&mut shared, id, entry, names, &failed);
                // The relay or the operator does not want a measurement now, or the configuration has another key of the
                // relay: retrying would not help.
                if !matches!(
                    failed.failure.reason,
                    Reason::Stopped
                        | Reason::Disabled
                        | Reason::NotAllowed
                        | Reason::TooOften
                        | Reason::WrongKey
                ) {
                    self.again(&mut shared, &entry.id, placement.guess);
                }
            }
        }
    }

    /// Schedules another measurement of this period, in the next slot with room.
    fn again(&self, shared: &mut CoordinatorState, id: &RelayId, guess: Rate) {
        let next = shared.position.1 + 1;
        if let Some(group) = self.alone(shared, id, guess) {
            shared.schedule.place_next(&group, next);
        }
    }

    fn write_file(&self) -> Result<(), DaemonError> {
        let mut shared = self.shared.borrow_mut();
        let (unix, started, network) = (shared.unix(), shared.started, shared.described());
        let consensus_relays = shared.network.as_ref().map(|network| network.relays.len() as u64);
        let text =
            shared.ledger.file_text((&network[..], consensus_relays), unix, started, shared.config.expiry);
        let text = text.expect("the configuration was checked for what a file must not contain");
        publish::publish(&shared.config.bandwidth_file, &text, unix, FILES).map_err(|cause| {
            let path = shared.config.bandwidth_file.display();
            std::io::Error::new(cause.kind(), format!("the bandwidth file {path}: {cause}"))
        })?;
        let expiry_s = shared.config.expiry.0 / 1_000_000_000;
        let sha256 = digest(text.as_bytes());
        shared.record(&Record::File { unix, started, network, expiry_s, sha256, consensus_relays });
        let path = shared.config.bandwidth_file.display().to_string();
        tracing::info!(path, relays = text.matches("node_id=").count(), "file");
        Ok(())
    }
}

/// Records and logs a failed measurement.
fn note_failure(
    shared: &mut CoordinatorState,
    id: &str,
    entry: &RelayEntry,
    names: &[String],
    Unmeasured { failure: Failure { reason, by: failed }, cause }: &Unmeasured,
) {
    let (unix, relay, name) = (shared.unix(), &entry.nickname, reason.name());
    let by = match failed {
        Some(Peer::Relay) => BY_RELAY.to_owned(),
        Some(Peer::Measurer(i)) => names[*i].clone(),
        None => "coordinator".to_owned(),
    };
    shared.record(&Record::Failure { id: id.into(), unix, reason: name.into(), by: by.clone() });
    let cause = cause.clone().unwrap_or_else(|| reason.to_string());
    if let (Reason::Lost | Reason::Timeout, Some(Peer::Measurer(_))) = (reason, failed) {
        shared.absent.insert(by.clone(), clock::now() + ABSENT);
        tracing::warn!(
            measurer = by,
            cause,
            consequence = "the others measure without it for ten minutes",
            "absent"
        );
    }
    tracing::warn!(id, relay, reason = name, by, cause, "failure");
    shared.errors.push((unix, relay.clone(), format!("{cause} ({by})")));
    let excess = shared.errors.len().saturating_sub(SHOWN_ERRORS);
    shared.errors.drain(..excess);
}

/// A relay that was not measured because it had been measured as often as it allows, with that reason; `None` if a
/// current result stands in.
fn why_missing(shared: &CoordinatorState, relay: &RelayEntry, now: u64) -> Option<String> {
    let period = shared.config.period;
    let name = &relay.nickname;
    let Some(good) = shared.ledger.good(&relay.id, now, shared.config.expiry) else {
        return Some(format!("{name} (tried {PER_PERIOD} times in {period} already, without a result)"));
    };
    let (age_s, estimate_bits_per_s) = (now.saturating_sub(good.unix), good.estimate.0);
    let cause = format!("measured {PER_PERIOD} times in {period} already; its last result stays");
    tracing::warn!(relay = name, cause, age_s, estimate_bits_per_s, "kept");
    None
}
