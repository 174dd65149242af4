//! Integration tests of this crate: one binary, so that the crate is linked once.

mod kernel_tcp;
mod moq;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod stem;
