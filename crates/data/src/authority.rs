//! Verifies the signatures of a consensus.
//!
//! See dir-spec, "Signing the document" and "Key certificates".
//!
//! The SHA-1 digest of an authority's long-term identity key is its name. A certificate by the identity key binds a
//! signing key to it for some months. A consensus is valid if more than half of the trusted authorities signed it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use rsa::pkcs1::{DecodeRsaPublicKey as _, EncodeRsaPublicKey as _};
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::document::{DataError, Document, quote, timestamp};
use crate::identity::{Identity, base64_bytes};
use crate::open::{MAX_DICTIONARY_KIB, MAX_UNPACKED, open};

/// Tor's authorities in August 2025 (`v3ident` in tor's `auth_dirs.inc`).
pub const TOR: [&str; 9] = [
    "0232AF901C31A04EE9848595AF9BB7620D4C5B2E",
    "23D15D965BC35114467363C165C4F724B64B4F66",
    "27102BC123E7AF1D4741AE047E160C91ADC76B21",
    "2F3DF9CA0E5D36F2685A2DA67184EB8DCB8CBA8C",
    "49015F787433103580E3B66A1707A00E60F2D15B",
    "70849B868D606BAECFB6128C5E3D782029AA394F",
    "E8A9C45EDE6D711294FADF8E7951F4DE6CA56B58",
    "ED03BB616EB2F60BEC80151114BB25CEF515B226",
    "F533C81CEF0BC0267857C99B2F471ADF249FA232",
];

/// Verified certificates of signing keys.
#[derive(Debug, Default)]
pub struct Certificates(Vec<Certificate>);

#[derive(Debug)]
struct Certificate {
    identity: Identity,
    /// SHA-1 of the signing key.
    digest: Identity,
    signing: RsaPublicKey,
    published: u64,
    expires: u64,
}

const BEGIN: &str = "dir-key-certificate-version ";

impl Certificates {
    /// Reads certificates from a file, all files of a folder, or all files of a `.tar.xz`.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if a file cannot be opened.
    pub fn open(&mut self, path: &Path) -> Result<(), DataError> {
        let name = path.display().to_string();
        let unreadable = |cause| DataError {
            cure: "give tor's cached-certs, a folder of such files, or a .tar.xz of them".into(),
            ..DataError::unreadable(name.clone(), &cause)
        };
        if path.is_dir() {
            let mut files = Vec::new();
            for entry in fs::read_dir(path).map_err(unreadable)? {
                files.push(entry.map_err(unreadable)?.path());
            }
            files.sort();
            return files.iter().filter(|file| file.is_file()).try_for_each(|file| self.read(&open(file)?));
        }
        // CollecTor publishes certificates as one .tar.xz of all files.
        if !name.ends_with(".tar.xz") {
            return self.read(&open(path)?);
        }
        let file = fs::File::open(path).map_err(unreadable)?;
        let unpacked = lzma_rust2::XzReader::new_mem_limit(file, true, MAX_DICTIONARY_KIB).take(MAX_UNPACKED);
        let mut archive = tar::Archive::new(unpacked);
        for entry in archive.entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            if entry.header().entry_type().is_file() {
                let mut text = String::new();
                entry.read_to_string(&mut text).map_err(unreadable)?;
                self.read(&Document::new(&name, text)?)?;
            }
        }
        Ok(())
    }

    /// Reads a file of concatenated certificates, such as tor's `cached-certs`.
    ///
    /// # Errors
    /// If a certificate is truncated or a signature of its two keys is wrong.
    pub fn read(&mut self, document: &Document) -> Result<(), DataError> {
        // Signatures cover lines that end in a line feed, but a download may have added carriage returns.
        let text = document.text().replace('\r', "");
        let starts: Vec<usize> = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .filter(|at| text[*at..].starts_with(BEGIN))
            .collect();
        if starts.is_empty() {
            return Err(
                document.error("lacks a line `dir-key-certificate-version`", "give tor's cached-certs")
            );
        }
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        for (start, end) in starts.iter().copied().zip(ends) {
            let certificate = certificate(&text[start..end]).map_err(|cause| {
                document.error_at_byte(
                    start,
                    format!("a certificate {cause}"),
                    "fetch the certificates again",
                )
            })?;
            self.0.push(certificate);
        }
        Ok(())
    }

    /// Number of certificates.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the `trusted` authorities that signed a consensus.
    ///
    /// Certificates must be valid at `valid_after`.
    ///
    /// # Errors
    /// If at most half of them did. The message lists good signatures, unknown keys and wrong signatures.
    pub fn verify(
        &self,
        document: &Document,
        valid_after: u64,
        trusted: &BTreeSet<Identity>,
    ) -> Result<BTreeSet<Identity>, DataError> {
        let (mut signed, mut unknown, mut wrong) = (BTreeSet::new(), 0, 0);
        let digests = digests(document.text())
            .ok_or_else(|| document.error("lacks a signature", "fetch the whole consensus"))?;
        for signature in signatures(document.text()) {
            let Some(Signature { algorithm, identity, key, bytes }) = signature else {
                return Err(document.error("has a malformed signature", "fetch the consensus again"));
            };
            if !trusted.contains(&identity) {
                continue;
            }
            let known = self.0.iter().find(|it| {
                it.identity == identity
                    && it.digest == key
                    // The time of the consensus counts, not the present, so that old consensuses verify.
                    && (it.published..it.expires).contains(&valid_after)
            });
            match (known, digests.get(algorithm)) {
                (Some(certificate), Some(digest)) => {
                    let right = certificate.signing.verify(Pkcs1v15Sign::new_unprefixed(), digest, &bytes);
                    if right.is_ok() {
                        signed.insert(identity);
                    } else {
                        wrong += 1;
                    }
                }
                _ => unknown += 1,
            }
        }
        if 2 * signed.len() > trusted.len() {
            return Ok(signed);
        }
        Err(document.error(
            format!(
                "is signed by {} of {} trusted authorities ({unknown} signatures by keys without a certificate, \
                 {wrong} wrong)",
                signed.len(),
                trusted.len()
            ),
            "give the certificates of more than half of the authorities, and an unmodified consensus",
        ))
    }
}

/// The signed digests: everything through the space after the first `directory-signature`.
fn digests(text: &str) -> Option<BTreeMap<&'static str, Vec<u8>>> {
    // CollecTor's annotation is not signed.
    let begin = if text.starts_with("@type ") { text.find('\n')? + 1 } else { 0 };
    const KEYWORD: &str = "\ndirectory-signature ";
    let end = text.find(KEYWORD)? + KEYWORD.len();
    let signed = text.get(begin..end)?.as_bytes();
    Some([("sha1", Sha1::digest(signed).to_vec()), ("sha256", Sha256::digest(signed).to_vec())].into())
}

struct Signature<'a> {
    algorithm: &'a str,
    identity: Identity,
    key: Identity,
    bytes: Vec<u8>,
}

fn signatures(text: &str) -> impl Iterator<Item = Option<Signature<'_>>> {
    text.split("\ndirectory-signature ").skip(1).map(|rest| {
        let (line, object) = rest.split_once('\n')?;
        let fields: Vec<&str> = line.split(' ').collect();
        let (algorithm, identity, key) = match fields[..] {
            [identity, key] => ("sha1", identity, key),
            [algorithm, identity, key] => (algorithm, identity, key),
            _ => return None,
        };
        let (identity, key) = (Identity::from_hex(identity)?, Identity::from_hex(key)?);
        Some(Signature { algorithm, identity, key, bytes: armoured(object, "SIGNATURE")? })
    })
}

/// The bytes of the first object of a kind.
fn armoured(text: &str, kind: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {kind}-----\n"))?;
    let (body, _) = rest.split_once(&format!("-----END {kind}-----"))?;
    base64_bytes(body.replace('\n', "").trim_end_matches('='))
}

fn certificate(text: &str) -> Result<Certificate, &'static str> {
    let value = |keyword: &str| {
        let line =
            text.lines().find(|line| line.strip_prefix(keyword).is_some_and(|rest| rest.starts_with(' ')));
        line.map(|line| &line[keyword.len() + 1..])
    };
    let time = |keyword: &str| value(keyword).and_then(timestamp).ok_or("lacks a time of validity");
    let key = |keyword: &str| {
        let (_, rest) = text.split_once(&format!("\n{keyword}\n")).ok_or("lacks a key")?;
        let der = armoured(rest, "RSA PUBLIC KEY").ok_or("lacks a key")?;
        RsaPublicKey::from_pkcs1_der(&der).map_err(|_| "has a malformed key")
    };
    let (identity_key, signing) = (key("dir-identity-key")?, key("dir-signing-key")?);
    let identity = value("fingerprint").and_then(Identity::from_hex).ok_or("lacks a fingerprint")?;
    if fingerprint(&identity_key) != identity {
        return Err("has a fingerprint that does not match its identity key");
    }
    const LAST: &str = "\ndir-key-certification\n";
    let end = text.find(LAST).ok_or("is cut off")? + LAST.len();
    let certification = armoured(&text[end..], "SIGNATURE").ok_or("is cut off")?;
    let unprefixed = Pkcs1v15Sign::new_unprefixed;
    identity_key
        .verify(unprefixed(), &Sha1::digest(&text.as_bytes()[..end]), &certification)
        .map_err(|_| "is not signed by its identity key")?;
    // The signing key signs the identity, so that an authority cannot certify a foreign key.
    let (_, crossed) = text.split_once("\ndir-key-crosscert\n").ok_or("lacks the signing key's signature")?;
    let crossed = armoured(crossed, "ID SIGNATURE").or_else(|| armoured(crossed, "SIGNATURE"));
    signing
        .verify(unprefixed(), &identity.0, &crossed.ok_or("lacks the signing key's signature")?)
        .map_err(|_| "is not signed by its signing key")?;
    let (published, expires) = (time("dir-key-published")?, time("dir-key-expires")?);
    Ok(Certificate { identity, digest: fingerprint(&signing), signing, published, expires })
}

fn fingerprint(key: &RsaPublicKey) -> Identity {
    let der = key.to_pkcs1_der().expect("a public key can be written");
    Identity(Sha1::digest(der.as_bytes()).into())
}

/// Parses the identities of authorities.
///
/// # Errors
/// The first name that is not 40 hexadecimal digits.
pub fn identities<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<BTreeSet<Identity>, String> {
    names.into_iter().map(|name| Identity::from_hex(name).ok_or_else(|| quote(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = include_str!("../fixtures/consensus-signed");
    const CERTIFICATES: &str = include_str!("../fixtures/certificates");
    /// Generated with openssl. The third authority lacks a certificate.
    const AUTHORITIES: [&str; 3] = [
        "2CCED436C9AA0848E9BC8F8591B6971F953EF6FD",
        "402B3E041D1C6EB0E81066FD0639CADBB7111E87",
        "CD1C8498139FC47B9BCD96CB1884CC30111B6B74",
    ];
    /// 2030-01-02 03:00:00.
    const VALID_AFTER: u64 = 1_893_553_200;

    fn certificates(text: &str) -> Result<Certificates, DataError> {
        let mut certificates = Certificates::default();
        certificates.read(&Document::new("certificates", text)?).map(|()| certificates)
    }

    fn verified(certificates: &Certificates, text: &str, authorities: &[&str]) -> Result<usize, String> {
        let trusted = identities(authorities.iter().copied()).unwrap();
        let document = Document::new("consensus", text).unwrap();
        certificates.verify(&document, VALID_AFTER, &trusted).map(|it| it.len()).map_err(|error| error.cause)
    }

    #[test]
    fn more_than_half_of_the_trusted_authorities_must_have_signed() {
        let known = certificates(CERTIFICATES).unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!(verified(&known, SIGNED, &AUTHORITIES), Ok(2));
        assert_eq!(
            verified(&certificates(&CERTIFICATES.replace('\n', "\r\n")).unwrap(), SIGNED, &AUTHORITIES),
            Ok(2)
        );
        let few = verified(&known, SIGNED, &[AUTHORITIES[0], AUTHORITIES[2]]).unwrap_err();
        assert!(few.contains("signed by 1 of 2") && few.contains("1 signatures by keys without"), "{few}");
        assert!(verified(&known, SIGNED, &TOR).unwrap_err().contains("signed by 0 of 9"));
        // Two signatures of one authority count once.
        let at = SIGNED.find("directory-signature").unwrap();
        let second = SIGNED[at + 1..].find("directory-signature").unwrap() + at + 1;
        let twice = format!("{}{}", &SIGNED[..second], &SIGNED[at..second]);
        assert!(verified(&known, &twice, &AUTHORITIES).unwrap_err().contains("signed by 1 of 3"));
    }

    #[test]
    fn changed_documents_do_not_verify() {
        let known = certificates(CERTIFICATES).unwrap();
        let end = SIGNED.find("directory-signature").unwrap();
        for at in (0..end).step_by(7) {
            let mut bytes = SIGNED.as_bytes().to_vec();
            bytes[at] ^= 1;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            assert!(verified(&known, &text, &AUTHORITIES).is_err(), "byte {at}");
        }
        let body = CERTIFICATES.find("-----BEGIN ID SIGNATURE").unwrap();
        for at in (0..body).step_by(13) {
            let mut bytes = CERTIFICATES.as_bytes().to_vec();
            bytes[at] ^= 1;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let read = certificates(&text);
            assert!(read.map_or(true, |read| read.len() < 2), "byte {at}");
        }
        let cut = certificates(&CERTIFICATES[..CERTIFICATES.len() - 200]).unwrap_err();
        assert!(cut.to_string().starts_with("certificates:") && cut.cause.contains("cut off"), "{cut}");
        assert!(certificates("fingerprint 00\n").unwrap_err().cause.contains("dir-key-certificate-version"));
    }
}
