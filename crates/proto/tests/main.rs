//! Integration tests of this crate: one binary, so that the crate is linked once.

mod flashflow;
mod hostile;
mod link;
mod overlay;
mod points;
mod roles;
mod schedulers;
mod shards;
mod states;
mod storms;
mod taken;
