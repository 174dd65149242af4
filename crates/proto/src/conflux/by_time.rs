//! The two ways of tor: by round-trip times alone.

use tidegate_control::random::Seed;

use super::link::Wish;
use super::split::{Split, Splitter};

/// Over the leg with the least round-trip time alone.
#[derive(Clone, Copy, Debug)]
pub struct MinLatency;

/// Over all legs, that with the least round-trip time first, and as much over each as its window takes.
#[derive(Clone, Copy, Debug)]
pub struct Throughput;

/// What a set does by itself.
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
