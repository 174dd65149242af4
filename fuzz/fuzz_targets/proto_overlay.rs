//! See `tidegate_fuzz::overlay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::overlay::proto_overlay(input));
