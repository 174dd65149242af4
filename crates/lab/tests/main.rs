//! Integration tests of this crate: one binary, so that the crate is linked once.

mod archive;
mod changing;
mod families;
#[path = "../../../tests/skipped.rs"]
mod skipped;
