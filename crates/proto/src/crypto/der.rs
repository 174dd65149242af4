//! The subset of DER that an identity certificate needs (X.690; RFC 5280).

/// SEQUENCE, INTEGER, BIT STRING, NULL, UTCTime, SET, UTF8String, OBJECT IDENTIFIER.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 2;
const BITS: u8 = 3;
const TIME: u8 = 0x17;
const SET: u8 = 0x31;
const TEXT: u8 = 12;
/// The explicit tag of a certificate's version.
const VERSION: u8 = 0xa0;
/// sha256WithRSAEncryption, and NULL parameters.
const SHA256_WITH_RSA: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11, 5, 0];
const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..=0x7f => vec![tag, length as u8],
        0x80..=0xff => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, content.to_vec()].concat()
}

/// Splits off the first element: its tag, all its bytes, its content, and the bytes behind it.
type Element<'a> = (u8, &'a [u8], &'a [u8], &'a [u8]);

fn read(bytes: &[u8]) -> Option<Element<'_>> {
    let (&[tag, first], _) = bytes.split_first_chunk::<2>()?;
    let (head, length) = match first {
        0..=0x7f => (2, usize::from(first)),
        0x81 => (3, usize::from(*bytes.get(2)?)),
        0x82 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        _ => return None,
    };
    let whole = bytes.get(..head + length)?;
    Some((tag, whole, &whole[head..], &bytes[head + length..]))
}

fn name(text: &str) -> Vec<u8> {
    let attribute = element(SEQUENCE, &[COMMON_NAME, &element(TEXT, text.as_bytes())].concat());
    element(SEQUENCE, &element(SET, &attribute))
}

/// The signed part of a self-signed certificate. Times are UTCTime (`YYMMDDhhmmssZ`).
pub(crate) fn to_be_signed(serial: u8, valid: [&str; 2], public_key_info: &[u8]) -> Vec<u8> {
    let times = valid.map(|time| element(TIME, time.as_bytes())).concat();
    let who = name("www.tidegate.invalid");
    let parts = [
        element(VERSION, &element(INTEGER, &[2])),
        element(INTEGER, &[serial & 0x7f]),
        element(SEQUENCE, SHA256_WITH_RSA),
        who.clone(),
        element(SEQUENCE, &times),
        who,
        public_key_info.to_vec(),
    ];
    element(SEQUENCE, &parts.concat())
}

/// Assembles a certificate from its signed part and the signature.
pub(crate) fn certificate(to_be_signed: &[u8], signature: &[u8]) -> Vec<u8> {
    let bits = element(BITS, &[&[0], signature].concat());
    element(SEQUENCE, &[to_be_signed, &element(SEQUENCE, SHA256_WITH_RSA), &bits].concat())
}

/// A certificate's parts.
pub(crate) struct Certificate<'a> {
    /// The signed part.
    pub to_be_signed: &'a [u8],
    /// The public key with its algorithm.
    pub public_key_info: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// Parses a certificate; `None` unless it is well-formed and signed with RSA and SHA-256.
pub(crate) fn parse(bytes: &[u8]) -> Option<Certificate<'_>> {
    let (SEQUENCE, _, certificate, []) = read(bytes)? else { return None };
    let (SEQUENCE, to_be_signed, mut fields, rest) = read(certificate)? else { return None };
    let (SEQUENCE, _, SHA256_WITH_RSA, rest) = read(rest)? else { return None };
    let (BITS, _, [0, signature @ ..], []) = read(rest)? else { return None };
    // Version, serial number, algorithm, issuer, times, subject.
    for tag in [VERSION, INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE] {
        let (found, _, _, rest) = read(fields)?;
        if found != tag {
            return None;
        }
        fields = rest;
    }
    let (SEQUENCE, public_key_info, _, _) = read(fields)? else { return None };
    Some(Certificate { to_be_signed, public_key_info, signature })
}
