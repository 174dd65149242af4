//! Results of a run of the overlay of parallel paths.

/// Counts over one interval, or over a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Packets that left their source.
    pub sent: u64,
    /// Packets that reached their destination.
    pub received: u64,
    /// Arrivals at relays and destinations, dropped ones included.
    pub arrivals: u64,
    /// Arrivals that were dropped.
    pub drops: u64,
    /// Timeouts reported to controllers: drops without a refusal, and late acknowledgements.
    pub timeouts: u64,
    /// Acknowledgements within the timeout.
    pub acks: u64,
    /// Acknowledgements that came after the timeout.
    pub late: u64,
    /// Sum over acknowledgements in time of the seconds that were left until the timeout.
    pub to_timeout: f64,
}

impl Counts {
    /// Adds another interval.
    pub fn add(&mut self, other: &Counts) {
        self.sent += other.sent;
        self.received += other.received;
        self.arrivals += other.arrivals;
        self.drops += other.drops;
        self.timeouts += other.timeouts;
        self.acks += other.acks;
        self.late += other.late;
        self.to_timeout += other.to_timeout;
    }

    /// Dropped arrivals as a share of all, as Table 7.4 counts them.
    pub fn drop_rate(&self) -> f64 {
        if self.arrivals == 0 { 0.0 } else { self.drops as f64 / self.arrivals as f64 }
    }
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// One entry per interval of the plan.
    pub bins: Vec<Counts>,
    /// The watched rate in bytes/s at the end of each interval, if one is watched.
    pub watched: Vec<f32>,
    /// Events that the run took.
    pub events: u64,
}

impl Report {
    /// The sum of the intervals from number `first` on.
    pub fn total(&self, first: usize) -> Counts {
        let mut sum = Counts::default();
        self.bins.iter().skip(first).for_each(|bin| sum.add(bin));
        sum
    }
}
