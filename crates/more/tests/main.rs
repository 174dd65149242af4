//! Integration tests of this crate: one binary, so that the crate is linked once.

mod common;
mod overlay;
mod receiver_paths;
