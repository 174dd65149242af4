//! Tests of connections and of pairs of them.

mod behaviour;
mod properties;
mod sharing;
