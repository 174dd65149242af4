//! Echo cells: a relay proves its capacity by decrypting and returning them.
//!
//! Only the measurer can predict the content of its cells. The relay removes the circuit's AES-CTR layer, as
//! for any traffic, and returns the result. The measurer knows both key streams, so it can compute the result
//! of cell `i` at any later time and stores nothing. A keyed function of the bucket number picks one cell of
//! every N to be checked after it came back.
//!
//! A body is a relay header (11 bytes) and 498 random bytes. The measurer encrypts only the header, one or two
//! AES blocks per cell; the random rest decrypts to something equally random. To the relay, checked cells look
//! like all others before and after decryption. If only checked cells were encrypted, a relay could decrypt one
//! block, look for a header, and skip the work for all other cells.

use aes::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use aes::{Aes128, Block};
use ctr::cipher::{KeyIvInit as _, StreamCipher as _, StreamCipherSeek as _};
use hkdf::Hkdf;
use sha2::Sha256;

use super::cell::{CELL, HEADER, RELAY};
use crate::crypto::layer::{BODY, Keystream};
use crate::crypto::ntor::HopKeys;

/// Bytes of a relay header.
const RELAY_HEADER: usize = 11;
/// Random bytes in an echo cell.
pub(crate) const CONTENT: usize = BODY - RELAY_HEADER;

/// Header of MEAS_ECHO, a relay command that Tor has not assigned: stream 0, no digest, 498 bytes.
///
/// TLS protects the cell on the way, the echo check its content.
const ECHO_HEADER: [u8; RELAY_HEADER] = [96, 0, 0, 0, 0, 0, 0, 0, 0, (CONTENT >> 8) as u8, CONTENT as u8];

/// A mistake in an echo cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoError {
    /// Another command or circuit.
    NotAnEcho,
    /// Decryption does not give the header.
    Header,
    /// The content is not the result of decryption.
    Content,
    /// More cells came back than were sent.
    Unasked,
}

impl std::fmt::Display for EchoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EchoError::NotAnEcho => "not an echo cell",
            EchoError::Header => "an echo cell without its header",
            EchoError::Content => "an echo cell that was not decrypted, or is out of order",
            EchoError::Unasked => "more echo cells than were sent",
        })
    }
}

impl std::error::Error for EchoError {}

fn check_link_header(cell: &[u8], circ: u32) -> Result<(), EchoError> {
    if cell[..4] != circ.to_be_bytes() || cell[4] != RELAY {
        return Err(EchoError::NotAnEcho);
    }
    Ok(())
}

/// The relay's end of a measurement circuit.
pub struct RelayEnd {
    circ: u32,
    keystream: Keystream,
}

impl RelayEnd {
    /// Creates the end from the circuit's number and keys.
    pub fn new(circ: u32, keys: &HopKeys) -> RelayEnd {
        RelayEnd { circ, keystream: Keystream::new(&keys.forward) }
    }

    /// Decrypts received cells in place, which are then returned.
    ///
    /// # Errors
    /// If a cell is not an echo cell: the connection must be closed.
    ///
    /// # Panics
    /// If the length is not a multiple of [`CELL`].
    pub fn answer(&mut self, cells: &mut [u8]) -> Result<(), EchoError> {
        assert_eq!(cells.len() % CELL, 0, "whole cells");
        for cell in cells.chunks_exact_mut(CELL) {
            check_link_header(cell, self.circ)?;
            self.keystream.apply(&mut cell[HEADER..]);
            if cell[HEADER..HEADER + RELAY_HEADER] != ECHO_HEADER {
                return Err(EchoError::Header);
            }
        }
        Ok(())
    }
}

/// The measurer's end of a measurement circuit.
pub struct MeasurerEnd {
    circ: u32,
    /// The circuit's cipher, for headers and checks.
    layer: Aes128,
    layer_stream: ctr::Ctr128BE<Aes128>,
    /// Generates the content of sent cells.
    content: ctr::Ctr128BE<Aes128>,
    /// Generates it again for checks.
    content_again: ctr::Ctr128BE<Aes128>,
    pick: Aes128,
    check_one_in: u32,
    sent: u64,
    received: u64,
    next_check: u64,
}

impl MeasurerEnd {
    /// Creates the end from the circuit's number and keys, and a fresh secret of the measurer.
    ///
    /// # Panics
    /// If `check_one_in` is zero.
    pub fn new(circ: u32, keys: &HopKeys, secret: &[u8; 32], check_one_in: u32) -> MeasurerEnd {
        assert!(check_one_in > 0, "some cells must be checked");
        let mut okm = [0; 32];
        Hkdf::<Sha256>::new(Some(b"tidegate flashflow echo 1"), secret)
            .expand(b"content, then picks", &mut okm)
            .expect("32 bytes are within HKDF's limit");
        let content_key: [u8; 16] = okm[..16].try_into().expect("16 bytes");
        let pick_key: [u8; 16] = okm[16..].try_into().expect("16 bytes");
        let content = || ctr::Ctr128BE::new(&content_key.into(), &[0; 16].into());
        let mut end = MeasurerEnd {
            circ,
            layer: Aes128::new(&keys.forward.into()),
            layer_stream: ctr::Ctr128BE::new(&keys.forward.into(), &[0; 16].into()),
            content: content(),
            content_again: content(),
            pick: Aes128::new(&pick_key.into()),
            check_one_in,
            sent: 0,
            received: 0,
            next_check: 0,
        };
        end.next_check = end.pick_in(0);
        end
    }

    /// Number of cells sent and not yet returned.
    pub fn in_flight(&self) -> u64 {
        self.sent - self.received
    }

    /// Fills a buffer with the next cells to send.
    ///
    /// # Panics
    /// If its length is not a multiple of [`CELL`].
    pub fn fill(&mut self, cells: &mut [u8]) {
        assert_eq!(cells.len() % CELL, 0, "whole cells");
        for cell in cells.chunks_exact_mut(CELL) {
            cell[..4].copy_from_slice(&self.circ.to_be_bytes());
            cell[4] = RELAY;
            cell[HEADER..HEADER + RELAY_HEADER].copy_from_slice(&self.encrypted_header(self.sent));
            let content = &mut cell[HEADER + RELAY_HEADER..];
            content.fill(0);
            self.content.apply_keystream(content);
            self.sent += 1;
        }
    }

    /// Takes returned cells and returns how many of them were checked in full.
    ///
    /// # Errors
    /// If the relay did not do its work: the measurement has failed.
    ///
    /// # Panics
    /// If the length is not a multiple of [`CELL`].
    pub fn receive(&mut self, cells: &[u8]) -> Result<u32, EchoError> {
        assert_eq!(cells.len() % CELL, 0, "whole cells");
        let mut checked = 0;
        for cell in cells.chunks_exact(CELL) {
            check_link_header(cell, self.circ)?;
            if self.received == self.sent {
                return Err(EchoError::Unasked);
            }
            if cell[HEADER..HEADER + RELAY_HEADER] != ECHO_HEADER {
                return Err(EchoError::Header);
            }
            if self.received == self.next_check {
                if cell[HEADER + RELAY_HEADER..] != self.expected(self.received) {
                    return Err(EchoError::Content);
                }
                checked += 1;
                self.next_check = self.pick_in(self.received / u64::from(self.check_one_in) + 1);
            }
            self.received += 1;
        }
        Ok(checked)
    }

    /// The cell of a bucket that is checked.
    fn pick_in(&self, bucket: u64) -> u64 {
        let mut block = Block::default();
        block[8..].copy_from_slice(&bucket.to_be_bytes());
        self.pick.encrypt_block(&mut block);
        let bits = u64::from_be_bytes(block[..8].try_into().expect("8 bytes"));
        let offset = (u128::from(bits) * u128::from(self.check_one_in)) >> 64;
        bucket * u64::from(self.check_one_in) + offset as u64
    }

    fn encrypted_header(&self, n: u64) -> [u8; RELAY_HEADER] {
        let at = u128::from(n) * BODY as u128;
        let mut blocks = [Block::from((at / 16).to_be_bytes()), Block::from((at / 16 + 1).to_be_bytes())];
        self.layer.encrypt_blocks(&mut blocks);
        let offset = (at % 16) as usize;
        let stream = blocks[0].iter().chain(&blocks[1]).skip(offset);
        let mut header = ECHO_HEADER;
        header.iter_mut().zip(stream).for_each(|(byte, key)| *byte ^= key);
        header
    }

    /// The content of cell `n` after decryption.
    fn expected(&mut self, n: u64) -> [u8; CONTENT] {
        let mut content = [0; CONTENT];
        self.content_again.seek(u128::from(n) * CONTENT as u128);
        self.content_again.apply_keystream(&mut content);
        self.layer_stream.seek(u128::from(n) * BODY as u128 + RELAY_HEADER as u128);
        self.layer_stream.apply_keystream(&mut content);
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(check_one_in: u32) -> (MeasurerEnd, RelayEnd) {
        let keys = HopKeys {
            forward_digest: [1; 20],
            backward_digest: [2; 20],
            forward: [3; 16],
            backward: [4; 16],
            binding: [0; 20],
        };
        (MeasurerEnd::new(9, &keys, &[5; 32], check_one_in), RelayEnd::new(9, &keys))
    }

    #[test]
    fn an_honest_relay_passes_every_check() {
        let (mut measurer, mut relay) = ends(1);
        for cells in [1, 7, 32] {
            let mut buffer = vec![0; cells * CELL];
            measurer.fill(&mut buffer);
            assert_eq!(measurer.in_flight(), cells as u64);
            relay.answer(&mut buffer).unwrap();
            assert_eq!(measurer.receive(&buffer), Ok(cells as u32));
        }
        assert_eq!(measurer.in_flight(), 0);
    }

    #[test]
    fn one_cell_of_each_bucket_is_checked_and_which_is_secret() {
        let (mut measurer, mut relay) = ends(125);
        let mut buffer = vec![0; 1250 * CELL];
        measurer.fill(&mut buffer);
        relay.answer(&mut buffer).unwrap();
        assert_eq!(measurer.receive(&buffer), Ok(10));
        let picks = |secret: u8| {
            let keys = HopKeys {
                forward_digest: [0; 20],
                backward_digest: [0; 20],
                forward: [0; 16],
                backward: [0; 16],
                binding: [0; 20],
            };
            let end = MeasurerEnd::new(1, &keys, &[secret; 32], 125);
            (0..50).map(|bucket| end.pick_in(bucket)).collect::<Vec<_>>()
        };
        assert!(picks(1).iter().enumerate().all(|(i, pick)| *pick / 125 == i as u64));
        assert_ne!(picks(1), picks(2));
    }

    #[test]
    fn cheats_are_noticed() {
        // Echoing without decrypting fails at the header.
        let (mut measurer, _) = ends(125);
        let mut buffer = vec![0; CELL];
        measurer.fill(&mut buffer);
        assert_eq!(measurer.receive(&buffer), Err(EchoError::Header));
        // Decrypting only the header.
        let (mut measurer, mut relay) = ends(1);
        measurer.fill(&mut buffer);
        let came = buffer.clone();
        relay.answer(&mut buffer).unwrap();
        buffer[16..].copy_from_slice(&came[16..]);
        assert_eq!(measurer.receive(&buffer), Err(EchoError::Content));
        // Replaying a cell, swapping two.
        let (mut measurer, mut relay) = ends(1);
        let mut two = vec![0; 2 * CELL];
        measurer.fill(&mut two);
        relay.answer(&mut two).unwrap();
        assert_eq!(measurer.receive(&two[..CELL]), Ok(1));
        assert_eq!(measurer.receive(&two[..CELL]), Err(EchoError::Content));
        // Answering before anything was sent.
        let (mut measurer, _) = ends(1);
        assert_eq!(measurer.receive(&two[..CELL]), Err(EchoError::Unasked));
        // Another circuit.
        two[0] = 1;
        assert_eq!(measurer.receive(&two[..CELL]), Err(EchoError::NotAnEcho));
    }

    /// A relay that forges one random cell per bucket escapes with probability (1 - 1/N) per bucket.
    #[test]
    fn evasion_follows_the_bound() {
        let (n, buckets, runs) = (20u64, 10, 400);
        let mut escaped = 0;
        for run in 0..runs {
            let keys = HopKeys {
                forward_digest: [0; 20],
                backward_digest: [0; 20],
                forward: [run as u8; 16],
                backward: [0; 16],
                binding: [0; 20],
            };
            let mut secret = [7; 32];
            secret[0] = run as u8;
            secret[1] = (run >> 8) as u8;
            let end = MeasurerEnd::new(1, &keys, &secret, n as u32);
            // The choice of the forged cell does not matter, so the test forges the first.
            escaped += u32::from((0..buckets).all(|bucket| end.pick_in(bucket) != bucket * n));
        }
        let bound = tidegate_control::flashflow::bounds::evasion(1.0 / n as f64, buckets as f64);
        assert!((f64::from(escaped) / f64::from(runs) - bound).abs() < 0.08, "{escaped} of {runs}, {bound}");
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 2 * CELL)) {
            let (mut measurer, mut relay) = ends(1);
            measurer.fill(&mut [0; CELL]);
            prop_assert!(measurer.receive(&bytes).is_err());
            let mut bytes = bytes;
            prop_assert!(relay.answer(&mut bytes).is_err());
            bytes[..5].copy_from_slice(&[0, 0, 0, 9, RELAY]);
            prop_assert_eq!(relay.answer(&mut bytes), Err(EchoError::Header));
        }
    }
}
