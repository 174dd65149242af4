//! What became of each transfer: times to connect, to the first and to the last byte, per class.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::Transfer;
use tidegate_sim::plan::{Plan, Traffic};

use super::histogram::Histogram;
use crate::traffic::class_of;

/// One finished (or given up) transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Index of its user.
    pub user: u32,
    /// Index into the classes.
    pub class: usize,
    /// Its circuit, numbered in the order of creation.
    pub circuit: u32,
    /// Hosts of the circuit's relays, guard first.
    pub path: [u32; 3],
    /// Size of the response.
    pub bytes: u64,
    /// When it began.
    #[serde(with = "super::kept::time")]
    pub begun: Time,
    /// Time to the CONNECTED cell.
    #[serde(with = "super::kept::optional")]
    pub connected: Option<Span>,
    /// Time to the first byte.
    #[serde(with = "super::kept::optional")]
    pub first: Option<Span>,
    /// Time to the last byte.
    #[serde(with = "super::kept::optional")]
    pub last: Option<Span>,
    /// Given up.
    pub timed_out: bool,
}

/// Whose transfer it is, and over which circuit.
#[derive(Clone, Copy, Debug)]
pub struct On {
    /// Index of the user.
    pub user: u32,
    /// The circuit.
    pub circuit: u32,
    /// Hosts of its relays, guard first.
    pub path: [u32; 3],
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
    /// Transfers begun after the warm-up.
    pub begun: u64,
    /// Of those, given up.
    pub timed_out: u64,
}

/// Folds transfers that begin after the warm-up. Response sizes of the same user group are told apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfers {
    /// Classes in order of the users that have them.
    pub classes: Vec<Class>,
    /// Everything that has ended, in order, up to a limit.
    pub records: Vec<Record>,
    /// Number of sizes of each user's requests.
    sizes: Vec<usize>,
    /// Empty once a run has ended.
    #[serde(skip)]
    under_way: BTreeMap<u32, Record>,
    by_name: BTreeMap<String, usize>,
}

/// Records beyond this number are counted in the classes only.
const MAX_RECORDS: usize = 1_000_000;

impl Transfers {
    /// For the users of a plan.
    pub fn new(plan: &Plan) -> Transfers {
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

    /// A transfer begins.
    pub fn begin(&mut self, now: Time, transfer: Transfer, on: On, class: &str, bytes: u64) {
        let On { user, circuit, path } = on;
        let name = class_of(class, self.sizes[user as usize], bytes);
        let classes = &mut self.classes;
        let class = *self.by_name.entry(name).or_insert_with_key(|name| {
            classes.push(Class { name: name.clone(), ..Class::default() });
            classes.len() - 1
        });
        self.classes[class].begun += 1;
        let (connected, first, last) = (None, None, None);
        let timed_out = false;
        let record =
            Record { user, class, circuit, path, bytes, begun: now, connected, first, last, timed_out };
        self.under_way.insert(transfer.0, record);
    }

    /// Its CONNECTED cell arrives.
    pub fn connected(&mut self, now: Time, transfer: Transfer) {
        if let Some(record) = self.under_way.get_mut(&transfer.0) {
            let took = now.since(record.begun);
            record.connected = Some(took);
            self.classes[record.class].connect.add(took, 1);
        }
    }

    /// Its first byte arrives.
    pub fn first_byte(&mut self, transfer: Transfer, took: Span) {
        if let Some(record) = self.under_way.get_mut(&transfer.0) {
            record.first = Some(took);
            let class = &mut self.classes[record.class];
            class.first.add(took, 1);
            if let Some(connected) = record.connected {
                class.round_trip.add(Span(took.0 - connected.0), 1);
            }
        }
    }

    /// Its last byte arrives.
    pub fn last_byte(&mut self, transfer: Transfer, took: Span) {
        if let Some(mut record) = self.under_way.remove(&transfer.0) {
            record.last = Some(took);
            self.classes[record.class].last.add(took, 1);
            self.keep(record);
        }
    }

    /// It is given up.
    pub fn timed_out(&mut self, transfer: Transfer) {
        if let Some(mut record) = self.under_way.remove(&transfer.0) {
            record.timed_out = true;
            self.classes[record.class].timed_out += 1;
            self.keep(record);
        }
    }

    /// The run ends: what is still under way is recorded as it stands.
    pub fn finish(&mut self) {
        for record in std::mem::take(&mut self.under_way).into_values() {
            self.keep(record);
        }
    }

    fn keep(&mut self, record: Record) {
        if self.records.len() < MAX_RECORDS {
            self.records.push(record);
        }
    }
}
