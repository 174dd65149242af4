//! Integration tests of this crate: one binary, so that the crate is linked once.

mod kernel_tcp;
mod moq;
mod netdoc;
#[path = "../../../tests/skipped.rs"]
mod skipped;
