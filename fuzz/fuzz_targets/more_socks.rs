//! SOCKS5 requests of a local application, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_more::socks::{Handshake, Step};

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let mut handshake = Handshake::default();
    for piece in pieces {
        let mut step = handshake.read(&piece);
        while let Step::Say(_) = step {
            step = handshake.read(&[]);
        }
        if matches!(step, Step::Connect { .. } | Step::Refuse(_)) {
            return;
        }
    }
});
