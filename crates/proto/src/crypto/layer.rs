//! One layer of a circuit's onion (tor-spec, "Relay cells"): AES-128 in counter mode over each cell's
//! 509-byte body, with a counter that starts at zero and is never reset, and a running SHA-1 digest by
//! which a hop recognises its own cells.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use aes::Aes128;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _, StreamCipherSeek as _};
use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Bytes of a relay cell's body.
pub const BODY: usize = 509;

/// The body of a cell.
#[derive(Clone, PartialEq)]
pub struct Body(pub Buffer);

impl Body {
    /// A body that begins with these parts and ends with zeros.
    pub(super) fn of(parts: &[&[u8]]) -> Body {
        let (mut bytes, mut at) = (Buffer::zeros(), 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Body(bytes)
    }
}

impl From<[u8; BODY]> for Body {
    fn from(bytes: [u8; BODY]) -> Body {
        Body(Buffer::of(&bytes))
    }
}

/// The memory of a body. Each thread keeps some of it for its next bodies.
pub struct Buffer(Option<Box<[u8; BODY]>>);

/// Buffers that a thread keeps: those of a few read blocks.
const KEPT: usize = 512;

thread_local! {
    #[expect(clippy::vec_box, reason = "memory moves between this list and bodies")]
    static SPARE: RefCell<Vec<Box<[u8; BODY]>>> = const { RefCell::new(Vec::new()) };
}

impl Buffer {
    /// A buffer with any bytes.
    fn take() -> Buffer {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        Buffer(Some(spare.unwrap_or_else(|| Box::new([0; BODY]))))
    }

    /// A buffer with these bytes.
    pub(super) fn of(bytes: &[u8; BODY]) -> Buffer {
        let mut buffer = Buffer::take();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// A buffer of zeros.
    pub(super) fn zeros() -> Buffer {
        let mut buffer = Buffer::take();
        buffer.fill(0);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = self.0.take();
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.extend(buffer);
            }
        });
    }
}

impl Deref for Buffer {
    type Target = [u8; BODY];

    fn deref(&self) -> &[u8; BODY] {
        self.0.as_deref().expect("only a dropped buffer has no memory")
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8; BODY] {
        self.0.as_deref_mut().expect("only a dropped buffer has no memory")
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::of(self)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({:02x?}..)", &self.0[..8])
    }
}

/// Where the header of a relay cell's body keeps "recognized" and the digest.
const RECOGNIZED: std::ops::Range<usize> = 1..3;
const DIGEST: std::ops::Range<usize> = 5..9;

/// A key stream, in one direction.
pub struct Keystream(ctr::Ctr128BE<Aes128>);

impl Keystream {
    /// Starts at counter zero.
    pub fn new(key: &[u8; 16]) -> Keystream {
        Keystream(ctr::Ctr128BE::new(key.into(), &[0; 16].into()))
    }

    /// Encrypts or decrypts the next bytes.
    pub fn apply(&mut self, bytes: &mut [u8]) {
        self.0.apply_keystream(bytes);
    }
}

/// A key stream that frees its expanded key, about 700 bytes, while idle.
struct Resting {
    key: Zeroizing<[u8; 16]>,
    /// Bytes encrypted so far, now and at the last [`rest`](Self::rest).
    at: u64,
    seen: u64,
    running: Option<Box<Keystream>>,
}

impl Resting {
    fn apply(&mut self, bytes: &mut [u8]) {
        let (key, at) = (&self.key, self.at);
        let running = self.running.get_or_insert_with(|| {
            let mut stream = Keystream::new(key);
            stream.0.seek(at);
            Box::new(stream)
        });
        running.apply(bytes);
        self.at += bytes.len() as u64;
    }

    fn rest(&mut self) {
        if std::mem::replace(&mut self.seen, self.at) == self.at {
            self.running = None;
        }
    }
}

/// One direction of one hop: its key stream and its digest.
pub struct Layer {
    keystream: Resting,
    digest: Sha1,
}

impl Layer {
    /// Creates the layer with the hop's key and digest seed of this direction.
    pub fn new(key: &[u8; 16], digest_seed: &[u8; 20]) -> Layer {
        let keystream = Resting { key: Zeroizing::new(*key), at: 0, seen: 0, running: None };
        Layer { keystream, digest: Sha1::new_with_prefix(digest_seed) }
    }

    /// Frees memory if no cell has passed since the last call.
    pub(crate) fn rest(&mut self) {
        self.keystream.rest();
    }

    /// Sender: writes the digest into the header and encrypts. The header's "recognized" field must be zero. The
    /// layers of hops nearer to the sender follow with [`Layer::pass`].
    pub fn seal(&mut self, body: &mut [u8; BODY]) {
        body[DIGEST].fill(0);
        self.digest.update(&body[..]);
        let digest = self.digest.clone().finalize();
        body[DIGEST].copy_from_slice(&digest[..4]);
        self.keystream.apply(body);
    }

    /// The running digest after the last cell that this end sent or recognised.
    pub fn digest(&self) -> [u8; 20] {
        self.digest.clone().finalize().into()
    }

    /// Adds or removes this layer.
    pub fn pass(&mut self, body: &mut [u8; BODY]) {
        self.keystream.apply(body);
    }

    /// Whether this hop is the recipient of a body, which has this layer removed. If so, the digest advances;
    /// otherwise it does not change.
    pub fn recognises(&mut self, body: &[u8; BODY]) -> bool {
        if body[RECOGNIZED] != [0, 0] {
            return false;
        }
        let mut blank = *body;
        blank[DIGEST].fill(0);
        let mut next = self.digest.clone();
        next.update(blank);
        if bool::from(next.clone().finalize()[..4].ct_ne(&body[DIGEST])) {
            return false;
        }
        self.digest = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(fill: u8) -> [u8; BODY] {
        let mut body = [fill; BODY];
        body[RECOGNIZED].fill(0);
        body
    }

    #[test]
    fn the_memory_of_dropped_bodies_is_used_again_up_to_a_bound() {
        let first = Body::from([7; BODY]);
        let place = first.0.as_ptr();
        drop(first);
        let zeros = Buffer::zeros();
        assert_eq!((zeros.as_ptr(), *zeros), (place, [0; BODY]));
        drop(zeros);
        let again = Body::from([9; BODY]);
        assert_eq!((again.0.as_ptr(), *again.0), (place, [9; BODY]));
        drop((0..2 * KEPT).map(|_| Buffer::zeros()).collect::<Vec<_>>());
        assert_eq!(SPARE.with_borrow(Vec::len), KEPT);
    }

    #[test]
    fn who_has_rested_goes_on_where_it_was() {
        let layer = || Layer::new(&[1; 16], &[2; 20]);
        let (mut speaker, mut hop) = (layer(), layer());
        for fill in 0..20 {
            let mut cell = body(fill);
            speaker.seal(&mut cell);
            hop.pass(&mut cell);
            assert!(hop.recognises(&cell));
            assert!(hop.keystream.running.is_some());
            for rests in 0..fill % 4 {
                hop.rest();
                assert_eq!(
                    hop.keystream.running.is_none(),
                    rests > 0,
                    "the first call sees a cell since the last one"
                );
            }
        }
    }

    /// NIST SP 800-38A, F.5.1, moved to a zero counter: E(K, 0) from FIPS 197-style AES-128 with a zero key
    /// and block is 66e94bd4ef8a2c3b884cfa59ca342b2e (GCM specification, test case 1's hash key).
    #[test]
    fn the_key_stream_starts_at_counter_zero() {
        let mut bytes = [0; 16];
        Keystream::new(&[0; 16]).apply(&mut bytes);
        let expected = 0x66e9_4bd4_ef8a_2c3b_884c_fa59_ca34_2b2e_u128.to_be_bytes();
        assert_eq!(bytes, expected);
        // Counter 1: E(0, 1) is 58e2fccefa7e3061367f1d57a4e7455a (the same test case's tag).
        let mut two = [0; 32];
        Keystream::new(&[0; 16]).apply(&mut two);
        assert_eq!(two[16..], 0x58e2_fcce_fa7e_3061_367f_1d57_a4e7_455a_u128.to_be_bytes());
    }

    #[test]
    fn three_hops_peel_their_layers_and_only_the_last_recognises() {
        let keys = [[1u8; 16], [2; 16], [3; 16]];
        let make = || keys.map(|key| Layer::new(&key, &[key[0]; 20]));
        let (mut client, mut relays) = (make(), make());
        for round in 0..3 {
            let mut cell = body(round);
            client[2].seal(&mut cell);
            client[1].pass(&mut cell);
            client[0].pass(&mut cell);
            for (hop, relay) in relays.iter_mut().enumerate() {
                relay.pass(&mut cell);
                assert_eq!(relay.recognises(&cell), hop == 2, "round {round}, hop {hop}");
            }
            assert_eq!(cell[9..], body(round)[9..]);
        }
    }

    #[test]
    fn the_digest_covers_all_cells_so_far() {
        let (mut a, mut b) = (Layer::new(&[7; 16], &[8; 20]), Layer::new(&[7; 16], &[8; 20]));
        let (mut first, mut second) = (body(1), body(2));
        a.seal(&mut first);
        a.seal(&mut second);
        b.pass(&mut first);
        b.pass(&mut second);
        // The second cell is recognised after the first only. A changed cell is never recognised.
        assert!(!b.recognises(&second));
        assert!(b.recognises(&first));
        second[400] ^= 1;
        assert!(!b.recognises(&second));
        second[400] ^= 1;
        assert!(b.recognises(&second));
    }

    /// The first digest by hand: SHA-1(seed | body with a blank digest).
    #[test]
    fn the_digest_is_sha1_of_seed_and_body() {
        let mut cell = body(9);
        let mut layer = Layer::new(&[0; 16], &[5; 20]);
        layer.seal(&mut cell);
        Keystream::new(&[0; 16]).apply(&mut cell);
        let mut blank = body(9);
        blank[DIGEST].fill(0);
        let expected = Sha1::digest([&[5; 20][..], &blank].concat());
        assert_eq!(cell[DIGEST], expected[..4]);
    }
}
