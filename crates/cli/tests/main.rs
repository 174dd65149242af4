//! Integration tests of this crate: one binary, so that the crate is linked once.

mod demos;
mod documents;
mod flashflow;
mod lab;
mod more;
mod overlay;
mod playground;
mod recipes;
mod relay_import;
mod results;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod stream;
mod structure;
mod tool;
mod tor_authority;
mod tor_stock;
mod waiting;
