//! See `tidegate_fuzz::proxy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::proxy::proxy(input));
