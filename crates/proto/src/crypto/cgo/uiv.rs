//! UIV+ of proposal 359: a wide-block cipher over a cell's body, made of AES-128 and POLYVAL (RFC 8452).

use aes::cipher::{BlockCipherDecrypt as _, BlockCipherEncrypt as _, InnerIvInit as _, KeyInit as _};
use aes::{Aes128Dec, Aes128Enc};
use ctr::cipher::{StreamCipherCore as _, StreamCipherSeekCore as _};
use ctr::{CtrCore, flavors};
use polyval::{Block, Polyval, universal_hash::UniversalHash as _};
use zeroize::Zeroizing;

use crate::crypto::layer::BODY;

/// Bytes of a tag.
pub(crate) const TAG: usize = 16;
/// Bytes of all keys: for the tag, AES and POLYVAL; for the rest of the body, AES and POLYVAL.
pub(crate) const KEYS: usize = 64;

/// Bytes of four blocks, for which POLYVAL is fast.
const FOUR: usize = 4 * TAG;
/// The bytes of a body behind its tag that make four blocks with the chained tag and the command.
const FIRST: usize = FOUR - TAG - 1;
/// Blocks of key stream that encryption may use; [`Expanded::derive`] takes the blocks behind them.
const STREAM_BLOCKS: u128 = 31;

/// The side of the circuit that a layer is on. Relays encrypt in both directions, because only encryption turns a changed
/// cell into a random one; clients decrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The client's.
    Client,
    /// The relay's.
    Relay,
}

/// AES in the direction of this side.
enum TagCipher {
    Encrypts(Aes128Enc),
    Decrypts(Aes128Dec),
}

/// Expanded keys of one direction. Those of AES are wiped when dropped. Those of POLYVAL are not: they open no cell without
/// AES, and each cell would wipe a copy.
pub(crate) struct Expanded {
    tag: TagCipher,
    tag_hash: Polyval,
    stream: Aes128Enc,
    stream_hash: Polyval,
}

impl Expanded {
    /// Expands keys for one side of a circuit.
    pub(crate) fn new(side: Side, keys: &[u8; KEYS]) -> Expanded {
        let [tag, tag_hash, stream, stream_hash] = split(keys);
        Expanded {
            tag: match side {
                Side::Relay => TagCipher::Encrypts(Aes128Enc::new(&tag.into())),
                Side::Client => TagCipher::Decrypts(Aes128Dec::new(&tag.into())),
            },
            tag_hash: Polyval::new(&tag_hash.into()),
            stream: Aes128Enc::new(&stream.into()),
            stream_hash: Polyval::new(&stream_hash.into()),
        }
    }

    /// Replaces the keys in place. A whole new value of 2 KB would be copied twice for each cell of a relay.
    pub(crate) fn replace(&mut self, keys: &[u8; KEYS]) {
        let [tag, tag_hash, stream, stream_hash] = split(keys);
        match &mut self.tag {
            TagCipher::Encrypts(cipher) => *cipher = Aes128Enc::new(&tag.into()),
            TagCipher::Decrypts(cipher) => *cipher = Aes128Dec::new(&tag.into()),
        }
        self.tag_hash = Polyval::new(&tag_hash.into());
        self.stream = Aes128Enc::new(&stream.into());
        self.stream_hash = Polyval::new(&stream_hash.into());
    }

    /// Encrypts a body at a relay, or decrypts it at a client. The tweak is the previous cell's tag and the command.
    pub(crate) fn apply(&self, side: Side, chain: &[u8; TAG], command: u8, body: &mut [u8; BODY]) {
        let (tag, rest) = body.split_first_chunk_mut().expect("a body is longer than its tag");
        match side {
            Side::Relay => {
                self.tag_block(chain, command, tag, rest);
                self.xor_stream(tag, 0, rest);
            }
            Side::Client => {
                self.xor_stream(tag, 0, rest);
                self.tag_block(chain, command, tag, rest);
            }
        }
    }

    /// Encrypts or decrypts the tag under a mask that depends on the tweak and the rest of the body.
    fn tag_block(&self, chain: &[u8; TAG], command: u8, tag: &mut [u8; TAG], rest: &[u8]) {
        // By groups of four blocks. Only the first and the last group, which zeros pad, are copied.
        let (begin, rest) = rest.split_at(FIRST);
        let (middle, end) = rest.split_at(rest.len() / FOUR * FOUR);
        let mut first = [0; FOUR];
        first[..TAG].copy_from_slice(chain);
        first[TAG] = command;
        first[TAG + 1..].copy_from_slice(begin);
        let mut last = [0; FOUR];
        last[..end.len()].copy_from_slice(end);
        let mut hash = self.tag_hash.clone();
        [&first, middle, &last].into_iter().for_each(|group| hash.update(Block::slice_as_chunks(group).0));
        let mask: [u8; TAG] = hash.finalize().into();
        xor(tag, &mask);
        match &self.tag {
            TagCipher::Encrypts(cipher) => cipher.encrypt_block(tag.into()),
            TagCipher::Decrypts(cipher) => cipher.decrypt_block(tag.into()),
        }
        xor(tag, &mask);
    }

    /// XORs the key stream of a tag onto `bytes`, from a block on.
    fn xor_stream(&self, tag: &[u8; TAG], block: u128, bytes: &mut [u8]) {
        let mut hash = self.stream_hash.clone();
        hash.update(&[Block::from(*tag)]);
        let mut counter: [u8; TAG] = hash.finalize().into();
        // Both uses of a tag stay within 64 blocks.
        counter[TAG - 1] &= 0xc0;
        let mut stream: CtrCore<&Aes128Enc, flavors::Ctr128BE> =
            CtrCore::inner_iv_init(&self.stream, &counter.into());
        stream.set_block_pos(block);
        stream.apply_keystream_partial(bytes.into());
    }

    /// Derives bytes from a nonce, from a part of the key stream that encrypts no cell.
    pub(crate) fn derive<const N: usize>(&self, nonce: &[u8; TAG]) -> Zeroizing<[u8; N]> {
        let mut bytes = Zeroizing::new([0; N]);
        self.xor_stream(nonce, STREAM_BLOCKS, &mut *bytes);
        bytes
    }
}

/// The four keys.
fn split(keys: &[u8; KEYS]) -> [[u8; 16]; 4] {
    std::array::from_fn(|n| keys[16 * n..16 * (n + 1)].try_into().expect("4 x 16 bytes"))
}

fn xor(bytes: &mut [u8; TAG], mask: &[u8; TAG]) {
    *bytes = (u128::from_ne_bytes(*bytes) ^ u128::from_ne_bytes(*mask)).to_ne_bytes();
}
