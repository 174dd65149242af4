//! See `tidegate_fuzz::stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::stream::stream_wire(input));
