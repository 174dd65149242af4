//! Integration tests of this crate: one binary, so that the crate is linked once.

mod archive;
mod changing;
mod compared;
mod families;
mod keys;
#[path = "../../../tests/skipped.rs"]
mod skipped;
