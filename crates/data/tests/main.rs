//! Integration tests of this crate: one binary, so that the crate is linked once.

mod common;
mod fuzz;
mod real_files;
