//! The SOCKS5 and HTTP CONNECT handshakes of local applications.

use tidegate_net::proxy::{Accepts, Handshake, Step};

/// Longest answer of a handshake; a SOCKS5 reply has 10 bytes, an HTTP answer is a line with headers.
const ANSWER: usize = 512;

/// A handshake in pieces of any size.
pub fn proxy(input: &[u8]) {
    let Some(pieces) = crate::typed::<Vec<Vec<u8>>>(input) else { return };
    for accepts in [Accepts::PlainSocks, Accepts::All] {
        let mut handshake = Handshake::new(accepts);
        for piece in &pieces {
            let mut step = handshake.read(piece);
            while let Step::Send(bytes) = &step {
                assert!(bytes.len() <= ANSWER, "{bytes:?}");
                step = handshake.read(&[]);
            }
            if matches!(step, Step::Connect { .. } | Step::Refuse(_)) {
                break;
            }
        }
    }
}
