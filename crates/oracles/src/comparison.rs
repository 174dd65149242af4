//! Comparison of the TCP model with the kernel's TCP, cell by cell.

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::tcp::pair::{LinkRule, Pair};
use tidegate_sim::tcp::{Config, Congestion};

use crate::kernel_tcp::{Conditions, Measured};

/// A row of the table: a link and an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The algorithm.
    pub congestion: Congestion,
    /// Rate of the link, Mbit/s of IP packets.
    pub mbit_per_s: u64,
    /// One-way delay in milliseconds.
    pub delay_ms: u64,
    /// Maximum number of packets in the queue of the link.
    pub queue: usize,
    /// Probability of loss.
    pub loss: f64,
}

impl Cell {
    /// The conditions of a run. The link for acknowledgements has the same rate, without loss.
    pub fn conditions(&self, from: Span, until: Span, seed: u64) -> Conditions {
        let rate = Rate(self.mbit_per_s * 1_000_000);
        let delay = Span::from_millis(self.delay_ms);
        Conditions {
            congestion: match self.congestion {
                Congestion::Reno => "reno",
                Congestion::Cubic => "cubic",
                Congestion::Bbr => "bbr",
                other => panic!("the kernel does not have {other:?}"),
            },
            there: LinkRule::new(rate, delay, self.queue).with_loss(self.loss),
            back: LinkRule::new(rate, delay, 10_000),
            from,
            until,
            seed,
        }
    }

    /// Runs the model under these conditions. Returns goodput in payload bytes/s and dropped packets.
    pub fn model(&self, conditions: &Conditions) -> (f64, u64) {
        let config = Config { congestion: self.congestion, ..Config::default() };
        let rules = [conditions.there, conditions.back];
        let mut pair = Pair::new([config.clone(), config], rules, Seed::root(conditions.seed));
        pair.ends[0].to_write = u64::MAX;
        let goodput = pair.goodput(Time::ZERO + conditions.from, Time::ZERO + conditions.until);
        (goodput, pair.link(0).dropped())
    }
}

/// The grid in experiments/kernel-tcp/README.md: each link under Reno, CUBIC and BBR.
pub fn grid() -> Vec<Cell> {
    let links: [(u64, u64, usize, f64); 14] = [
        (10, 5, 8, 0.0),
        (10, 20, 10, 0.0),
        (10, 20, 33, 0.0),
        (10, 50, 83, 0.0),
        (10, 50, 83, 1e-2),
        (20, 5, 17, 0.0),
        (20, 20, 50, 0.0),
        (20, 20, 50, 1e-3),
        (20, 20, 267, 0.0),
        (20, 50, 167, 1e-4),
        (100, 5, 83, 1e-3),
        (100, 20, 60, 0.0),
        (100, 20, 333, 0.0),
        (100, 20, 333, 1e-4),
    ];
    let cell = |(mbit_per_s, delay_ms, queue, loss), congestion| Cell {
        congestion,
        mbit_per_s,
        delay_ms,
        queue,
        loss,
    };
    links
        .into_iter()
        .flat_map(|link| {
            [Congestion::Reno, Congestion::Cubic, Congestion::Bbr].map(|congestion| cell(link, congestion))
        })
        .collect()
}

/// A row of results of kernel and model, over all seeds.
#[derive(Clone, Debug)]
pub struct Row {
    /// The link.
    pub cell: Cell,
    /// Results of the kernel by seed.
    pub kernel: Vec<Measured>,
    /// Results of the model: goodput in payload bytes/s, dropped packets.
    pub model: Vec<(f64, u64)>,
}

impl Row {
    /// Mean goodput of the kernel, Mbit/s of payload.
    pub fn kernel_mbit_per_s(&self) -> f64 {
        self.kernel.iter().map(|run| run.goodput).sum::<f64>() / self.kernel.len() as f64 * 8e-6
    }

    /// Mean goodput of the model, Mbit/s of payload.
    pub fn model_mbit_per_s(&self) -> f64 {
        self.model.iter().map(|run| run.0).sum::<f64>() / self.model.len() as f64 * 8e-6
    }

    /// The model's relative error.
    pub fn error(&self) -> f64 {
        self.model_mbit_per_s() / self.kernel_mbit_per_s() - 1.0
    }
}
