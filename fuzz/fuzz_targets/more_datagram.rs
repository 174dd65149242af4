//! See `tidegate_fuzz::more`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::more::more_datagram(input));
