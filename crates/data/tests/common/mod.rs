//! Location of the real data sets.

#[path = "../../../../tests/skipped.rs"]
mod skipped;

use std::path::PathBuf;

/// The data directory: `TIDEGATE_DATA`, or `../shared/data` beside the checkout. Prints a note if neither exists.
pub fn real_data() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("TIDEGATE_DATA").map_or_else(beside, PathBuf::from);
    let there = path.is_dir();
    if !there {
        skipped::skipped("readers of real data sets", "TIDEGATE_DATA");
    }
    there.then_some(path)
}
