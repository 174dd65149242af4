//! A local application's SOCKS5 or HTTP CONNECT handshake, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_net::proxy::{Accepts, Handshake, Step};

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    for accepts in [Accepts::PlainSocks, Accepts::All] {
        let mut handshake = Handshake::new(accepts);
        for piece in &pieces {
            let mut step = handshake.read(piece);
            while let Step::Send(_) = step {
                step = handshake.read(&[]);
            }
            if matches!(step, Step::Connect { .. } | Step::Refuse(_)) {
                break;
            }
        }
    }
});
