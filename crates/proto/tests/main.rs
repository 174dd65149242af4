//! Integration tests of this crate: one binary, so that the crate is linked once.

mod conflux;
mod flashflow;
mod hostile;
mod kist;
mod link;
mod overlay;
mod points;
mod predictor;
mod roles;
mod schedulers;
mod shards;
mod states;
mod storms;
mod taken;
