//! Transfers: times to connect, to the first and to the last byte, per class.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::Transfer;
use tidegate_sim::plan::{Plan, Traffic};

use super::histogram::Histogram;
use crate::traffic::class_of;

/// One transfer that ended, timed out, or was under way at the end of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Index of its user.
    pub user: u32,
    /// Index into the classes.
    pub class: usize,
    /// Number of its circuit, in order of creation.
    pub circuit: u32,
    /// Hosts of the circuit's relays, guard first.
    pub path: [u32; 3],
    /// Size of the response.
    pub bytes: u64,
    /// When it began.
    #[serde(with = "super::kept::time")]
    pub begun: Time,
    /// Start of the circuit's construction relative to `begun`, in nanoseconds; may be negative.
    #[serde(default)]
    pub circuit_begun_ns: Option<i64>,
    /// End of the circuit's construction relative to `begun`, in nanoseconds; may be negative.
    #[serde(default)]
    pub circuit_built_ns: Option<i64>,
    /// Time until its stream was opened on that circuit.
    #[serde(default, with = "super::kept::optional")]
    pub opened: Option<Span>,
    /// Time to the CONNECTED cell.
    #[serde(with = "super::kept::optional")]
    pub connected: Option<Span>,
    /// Time to the first byte.
    #[serde(with = "super::kept::optional")]
    pub first: Option<Span>,
    /// Time to the last byte.
    #[serde(with = "super::kept::optional")]
    pub last: Option<Span>,
    /// Whether it timed out.
    pub timed_out: bool,
    /// Time until it timed out.
    #[serde(default, with = "super::kept::optional")]
    pub given_up: Option<Span>,
    /// Goodput over the `SPANS` of the response, in bytes/s; only if no other transfer shared the circuit.
    #[serde(default)]
    pub goodput_bytes_per_s: [Option<f64>; 2],
    /// Time at which the response passed the start of a span.
    #[serde(skip)]
    from: Option<Time>,
}

/// Spans over which goodput is measured, as (from, to) in bytes.
///
/// Tor Metrics used 500 KiB to 1 MiB of a response until 2021, and uses the fifth MiB since.
pub(crate) const SPANS: [(u64, u64); 2] = [(500 << 10, 1 << 20), (4 << 20, 5 << 20)];

/// The transfer that a circuit's bytes belong to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum FollowedTransfer {
    /// No transfer.
    #[default]
    None,
    /// One transfer, and the number of its bytes that arrived.
    One(Transfer, u64),
    /// Several transfers at once; their bytes cannot be attributed.
    Several,
}

impl FollowedTransfer {
    /// Records that a transfer begins on the circuit.
    pub(crate) fn begin(&mut self, transfer: Transfer) {
        *self = if let FollowedTransfer::None = self {
            FollowedTransfer::One(transfer, 0)
        } else {
            FollowedTransfer::Several
        };
    }

    /// Records that a transfer's last byte arrived; the next transfer can be followed again.
    pub(crate) fn end(&mut self, transfer: Transfer) {
        if matches!(self, FollowedTransfer::One(one, _) if *one == transfer) {
            *self = FollowedTransfer::None;
        }
    }
}

/// The user and the circuit of a transfer that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferPlace {
    /// Index of the user.
    pub user: u32,
    /// The circuit.
    pub circuit: u32,
    /// Hosts of its relays, guard first.
    pub path: [u32; 3],
}

/// The circuit that a stream is opened on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedCircuit {
    /// Its number.
    pub circuit: u32,
    /// Hosts of its relays, guard first.
    pub path: [u32; 3],
    /// Start of its construction.
    pub begun: Time,
    /// End of its construction, if it is complete.
    pub built: Option<Time>,
}

/// All times of one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Name in reports.
    pub name: String,
    /// Time to the CONNECTED cell.
    pub connect: Histogram,
    /// Time to the first byte (TTFB).
    pub first: Histogram,
    /// From the CONNECTED cell to the first byte: the request's round trip over the circuit.
    pub round_trip: Histogram,
    /// Time to the last byte (TTLB).
    pub last: Histogram,
    /// Times that transfers without a first byte were seen to last, until they timed out or the run ended.
    #[serde(default)]
    pub without_first: Histogram,
    /// The same for transfers without a last byte.
    #[serde(default)]
    pub without_last: Histogram,
    /// Transfers begun after the warm-up.
    pub begun: u64,
    /// Transfers of these that timed out.
    pub timed_out: u64,
}

/// Aggregates transfers that begin after the warm-up, by class: user group and response size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfers {
    /// Classes in order of the users that have them.
    pub classes: Vec<Class>,
    /// Ended transfers in order, at most `MAX_RECORDS`.
    pub records: Vec<Record>,
    /// Number of sizes of each user's requests.
    sizes: Vec<usize>,
    /// Transfers under way; empty after the run.
    #[serde(skip)]
    under_way: BTreeMap<u32, Record>,
    by_name: BTreeMap<String, usize>,
}

/// Transfers beyond this number count in their class, without a record.
const MAX_RECORDS: usize = 1_000_000;

impl Transfers {
    /// Creates the aggregate for the users of a plan.
    pub(crate) fn new(plan: &Plan) -> Transfers {
        let sizes = plan.users.iter().map(|user| match &user.traffic {
            Traffic::Fetch { requests, .. } => requests.len(),
            Traffic::Markov(..) => 1,
        });
        Transfers {
            classes: Vec::new(),
            records: Vec::new(),
            sizes: sizes.collect(),
            under_way: BTreeMap::new(),
            by_name: BTreeMap::new(),
        }
    }

    /// Records the start of a transfer.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        transfer: Transfer,
        on: TransferPlace,
        class: &str,
        bytes: u64,
    ) {
        let TransferPlace { user, circuit, path } = on;
        let name = class_of(class, self.sizes[user as usize], bytes);
        let classes = &mut self.classes;
        let class = *self.by_name.entry(name).or_insert_with_key(|name| {
            classes.push(Class { name: name.clone(), ..Class::default() });
            classes.len() - 1
        });
        // The class exists: it was created on first use.
        self.classes[class].begun += 1;
        let (connected, first, last) = (None, None, None);
        let record = Record {
            user,
            class,
            circuit,
            path,
            bytes,
            begun: now,
            circuit_begun_ns: None,
            circuit_built_ns: None,
            opened: None,
            connected,
            first,
            last,
            timed_out: false,
            given_up: None,
            goodput_bytes_per_s: [None; 2],
            from: None,
        };
        self.under_way.insert(transfer.0, record);
    }

    /// Records arriving bytes of a response.
    pub(crate) fn received(&mut self, now: Time, followed: &mut FollowedTransfer, bytes: u64) {
        let FollowedTransfer::One(transfer, before) = *followed else { return };
        let after = before + bytes;
        *followed = FollowedTransfer::One(transfer, after);
        let passes = |mark: u64| (before + 1..=after).contains(&mark);
        let Some((span, (from, to))) = (0..).zip(SPANS).find(|(_, (from, to))| passes(*from) || passes(*to))
        else {
            return;
        };
        let Some(record) = self.under_way.get_mut(&transfer.0) else { return };
        if passes(to) {
            record.goodput_bytes_per_s[span] =
                record.from.map(|begun| (to - from) as f64 / now.since(begun).as_secs_f64());
        } else {
            record.from = Some(now);
        }
    }

    /// Records that a transfer's stream opens on a circuit.
    pub(crate) fn opened(&mut self, now: Time, transfer: Transfer, over: OpenedCircuit) {
        if let Some(record) = self.under_way.get_mut(&transfer.0) {
            let from_request = |time: Time| time.0.cast_signed() - record.begun.0.cast_signed();
            record.circuit_begun_ns = Some(from_request(over.begun));
            record.circuit_built_ns = over.built.map(from_request);
            record.opened = Some(now.since(record.begun));
            (record.circuit, record.path) = (over.circuit, over.path);
        }
    }

    /// Records the arrival of a transfer's CONNECTED cell.
    pub(crate) fn connected(&mut self, now: Time, transfer: Transfer) {
        if let Some(record) = self.under_way.get_mut(&transfer.0) {
            let took = now.since(record.begun);
            record.connected = Some(took);
            self.classes[record.class].connect.add(took, 1);
        }
    }

    /// Records the arrival of a transfer's first byte.
    pub(crate) fn first_byte(&mut self, transfer: Transfer, took: Span) {
        if let Some(record) = self.under_way.get_mut(&transfer.0) {
            record.first = Some(took);
            let class = &mut self.classes[record.class];
            class.first.add(took, 1);
            if let Some(connected) = record.connected {
                class.round_trip.add(Span(took.0 - connected.0), 1);
            }
        }
    }

    /// Records the arrival of a transfer's last byte, and returns its circuit.
    pub(crate) fn last_byte(&mut self, transfer: Transfer, took: Span) -> Option<u32> {
        let mut record = self.under_way.remove(&transfer.0)?;
        let circuit = record.circuit;
        record.last = Some(took);
        self.classes[record.class].last.add(took, 1);
        self.keep(record);
        Some(circuit)
    }

    /// Records that a transfer timed out.
    pub(crate) fn timed_out(&mut self, now: Time, transfer: Transfer) {
        if let Some(mut record) = self.under_way.remove(&transfer.0) {
            record.timed_out = true;
            record.given_up = Some(now.since(record.begun));
            self.classes[record.class].timed_out += 1;
            self.censor(now, &record);
            self.keep(record);
        }
    }

    /// Ends the run: transfers under way become records without an end.
    pub(crate) fn finish(&mut self, end: Time) {
        for record in std::mem::take(&mut self.under_way).into_values() {
            self.censor(end, &record);
            self.keep(record);
        }
    }

    /// Counts how long an unfinished transfer has lasted at least.
    fn censor(&mut self, now: Time, record: &Record) {
        let class = &mut self.classes[record.class];
        let lasted = now.since(record.begun);
        class.without_last.add(lasted, 1);
        if record.first.is_none() {
            class.without_first.add(lasted, 1);
        }
    }

    fn keep(&mut self, record: Record) {
        if self.records.len() < MAX_RECORDS {
            self.records.push(record);
        }
    }
}
