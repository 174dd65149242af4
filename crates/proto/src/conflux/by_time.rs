//! Tor's two ways of division, which use round-trip times alone.

use tidegate_control::random::Seed;

use super::link::Wish;
use super::split::{Split, Splitter};

/// Always the leg with the least round-trip time.
#[derive(Clone, Copy, Debug)]
pub struct MinLatency;

/// All legs up to their windows, the one with the least round-trip time first.
#[derive(Clone, Copy, Debug)]
pub struct Throughput;

/// The default behaviour of a set.
#[derive(Debug)]
struct ByTime;

impl Splitter for ByTime {}

impl Split for MinLatency {
    fn wish(&self) -> Wish {
        Wish::MinLatency
    }
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(ByTime)
    }
}

impl Split for Throughput {
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(ByTime)
    }
}
