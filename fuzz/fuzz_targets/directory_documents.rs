//! See `tidegate_fuzz::documents`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tidegate_fuzz::documents::directory_documents(input));
