//! Directories and descriptors: writing and reading again gives the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_more::descriptor::Descriptor;
use tidegate_more::directory::{Directory, authority_key};

fuzz_target!(|text: &str| {
    let _ = Descriptor::parse(text);
    let _ = Directory::parse(text, &authority_key(&[1; 32]));
    if let Ok((directory, _)) = Directory::parse_unsigned(text) {
        let again = Directory::parse_unsigned(&directory.write(Some(&[1; 32])));
        assert_eq!(again.map(|(again, _)| again), Ok(directory));
    }
});
