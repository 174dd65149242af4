//! Input of a run: a server, viewers that arrive and leave, and the network between them.

use std::fmt;
use std::ops::Range;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_stream::message::Fault;
use tidegate_stream::packet::PAYLOAD;
use tidegate_stream::server::ServerConfig;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub server: ServerConfig,
    /// The viewers.
    pub viewers: Vec<ViewerPlan>,
    /// TS bits per second of the source.
    pub rate: Rate,
    /// One way between any two peers at least.
    pub delay: Span,
    /// Peers lie in a square with this delay from side to side, added to `delay`.
    pub side: Span,
    /// Standard deviation of the delay added to packets; half of the packets are not delayed.
    pub jitter: Span,
    /// The share of datagrams that are lost.
    pub loss: f64,
    /// How long players wait for a packet.
    pub skip_after: Span,
    /// Uplinks that change.
    pub changes: Vec<(Time, usize, Rate)>,
    /// How long it runs.
    pub duration: Span,
}

/// A viewer.
#[derive(Clone, Copy, Debug)]
pub struct ViewerPlan {
    /// When it comes.
    pub comes: Time,
    /// When it goes, and how.
    pub goes: Option<(Time, Exit)>,
    /// Its uplink rate.
    pub uplink: Rate,
    /// The uplink rate that it claims.
    pub claim: Rate,
    /// Whether it forwards.
    pub forwards: bool,
    /// Its conduct: honest or not.
    pub conduct: Conduct,
}

/// How a viewer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It leaves with a message.
    Polite,
    /// It disappears without a message.
    Killed,
}

/// The conduct of a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// It follows the protocol.
    Honest,
    /// From this time on it forwards exploration packets, but neither video nor signatures.
    FreeRider(Time),
    /// From this time on it forwards other bytes than the stream's.
    Forger(Time),
    /// It complains about every parent all the time, with this fault.
    Grumbler(Fault),
}

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError(String);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = |what: &str| Err(PlanError(what.to_owned()));
        if self.viewers.len() > 20_000 {
            return wrong("more than 20000 viewers");
        }
        if self.rate.0 < 8 * PAYLOAD as u64 || self.viewers.iter().any(|viewer| viewer.uplink.0 == 0) {
            return wrong("a stream needs a packet a second, and uplinks a bit");
        }
        if !(0.0..1.0).contains(&self.loss) {
            return wrong("a loss outside 0 to 1");
        }
        if self.changes.iter().any(|(_, viewer, rate)| *viewer >= self.viewers.len() || rate.0 == 0) {
            return wrong("a change of an uplink that is not there, or to nothing");
        }
        Ok(())
    }

    /// Viewers with uplinks between two rates, with a mean, that arrive within `spread`.
    ///
    /// # Panics
    /// If the mean does not lie between the two.
    pub fn viewers(
        count: usize,
        uplinks: Range<f64>,
        mean: f64,
        spread: Span,
        seed: Seed,
    ) -> Vec<ViewerPlan> {
        let Range { start: low, end: high } = uplinks;
        assert!(low < mean && mean < high, "a mean between the least and the most");
        let mut random = seed.fork("uplinks").random();
        // The first power has its mean in the middle, higher ones below.
        let power = (high - low) / (mean - low) - 1.0;
        let mut shares: Vec<f64> =
            (0..count).map(|n| ((n as f64 + 0.5) / count as f64).powf(power)).collect();
        random.shuffle(&mut shares);
        shares
            .into_iter()
            .map(|share| {
                let uplink = Rate((low + (high - low) * share) as u64);
                let comes = Time(random.uniform(0.0, spread.0 as f64) as u64);
                let conduct = Conduct::Honest;
                ViewerPlan { comes, goes: None, uplink, claim: uplink, forwards: true, conduct }
            })
            .collect()
    }

    /// Viewers go (every other one killed) and others come instead, each `mean` on average after the last.
    pub fn churn(&mut self, mean: Span, seed: Seed) {
        let mut random = seed.fork("churn").random();
        let mut at = Time::ZERO;
        for n in 0.. {
            at += Span::from_secs_f64(random.exponential(mean.as_secs_f64()));
            if at >= Time::ZERO + self.duration {
                return;
            }
            let stay: Vec<usize> = (0..self.viewers.len())
                .filter(|v| self.viewers[*v].goes.is_none() && self.viewers[*v].comes < at)
                .collect();
            if stay.is_empty() {
                continue;
            }
            let goes = stay[random.below(stay.len())];
            let exit = if n % 2 == 0 { Exit::Killed } else { Exit::Polite };
            self.viewers[goes].goes = Some((at, exit));
            let instead = ViewerPlan { comes: at, goes: None, ..self.viewers[goes] };
            self.viewers.push(instead);
        }
    }
}
