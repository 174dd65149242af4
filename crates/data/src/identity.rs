//! Identifiers of relays and their documents.

use std::fmt;

/// SHA-256 digest of a microdescriptor, its name in a consensus.
pub type MicrodescriptorDigest = [u8; 32];

/// The SHA-1 digest of a relay's RSA identity key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [u8; 20]);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Identity {
    /// Parses 40 hexadecimal digits, with or without a leading `$`.
    pub fn from_hex(text: &str) -> Option<Identity> {
        let digits = text.strip_prefix('$').unwrap_or(text).as_bytes();
        let mut bytes = [0; 20];
        if digits.len() != 40 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        Some(Identity(bytes))
    }

    /// Parses 27 characters of unpadded base64, as in consensuses.
    pub(crate) fn from_base64(text: &str) -> Option<Identity> {
        base64(text).map(Identity)
    }
}

/// Decodes exactly `N` bytes of unpadded base64.
pub(crate) fn base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != (N * 4).div_ceil(3) {
        return None;
    }
    base64_bytes(text)?.try_into().ok()
}

/// Decodes unpadded base64 without leftover bits.
pub(crate) fn base64_bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0u32);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

/// Encodes unpadded base64.
pub(crate) fn to_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        (0..=chunk.len()).map(move |n| char::from(DIGITS[(bits >> (18 - 6 * n)) as usize % 64]))
    };
    bytes.chunks(3).flat_map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_from_base64_and_hex() {
        let identity = Identity::from_base64("AAoQ1DAR6kkoo19hBAX5K0QztNw").unwrap();
        assert_eq!(identity.to_string(), "000A10D43011EA4928A35F610405F92B4433B4DC");
        assert_eq!(Identity::from_hex("$000a10d43011ea4928a35f610405f92b4433b4dc"), Some(identity));
        for bad in
            ["AAoQ1DAR6kkoo19hBAX5K0QztN", "AAoQ1DAR6kkoo19hBAX5K0QztN=", "AAoQ1DAR6kkoo19hBAX5K0QztNx"]
        {
            assert_eq!(Identity::from_base64(bad), None, "{bad}");
        }
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"\xff\xfe\xfd\xfc"] {
            assert_eq!(base64_bytes(&to_base64(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(to_base64(&identity.0), "AAoQ1DAR6kkoo19hBAX5K0QztNw");
        assert_eq!(Identity::from_hex("00"), None);
        assert_eq!(Identity::from_hex(&"ä".repeat(20)), None);
    }
}
