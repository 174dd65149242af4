//! See `tidegate_fuzz::cells`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::cells::proto_cells(input));
