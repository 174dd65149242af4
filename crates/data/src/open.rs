//! Opens files: plain, .xz or .gz by content, within limits.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::document::{DataError, Document};

/// Maximum length of an unpacked document, bytes.
pub(crate) const MAX_UNPACKED: u64 = 256 << 20;

/// Maximum size of an .xz dictionary, KiB (`xz -9` uses 65 MiB).
pub(crate) const MAX_DICTIONARY_KIB: u32 = 80 << 10;

/// The path of a file in a folder, plain, .xz or .gz; the plain path if none exists.
pub(crate) fn find_packed(folder: &Path, name: &str) -> PathBuf {
    let paths = ["", ".xz", ".gz"].map(|ending| folder.join(format!("{name}{ending}")));
    paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]).clone()
}

/// Reads a file and unpacks .xz and .gz, recognised by their first bytes.
///
/// # Errors
/// If the file is unreadable, empty, damaged, not text, or longer than `MAX_UNPACKED`.
pub fn open(path: &Path) -> Result<Document, DataError> {
    let name = path.display().to_string();
    let unreadable = |error: io::Error| DataError::unreadable(name.clone(), &error);
    // Checked before opening, because opening a FIFO blocks and a device may be endless.
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        let cause = if about.is_dir() { "is a directory" } else { "is not a regular file" };
        return Err(DataError {
            cause: cause.into(),
            cure: "name a file".into(),
            ..unreadable(io::Error::other(""))
        });
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut packed = Vec::new();
    file.take(MAX_UNPACKED + 1).read_to_end(&mut packed).map_err(unreadable)?;
    unpack(&name, packed)
}

/// Makes a document of a file's bytes; unpacks .xz and .gz by their first bytes.
///
/// Bytes that are not UTF-8 (Latin-1 contact lines in old documents) become replacement characters.
///
/// # Errors
/// If the bytes are empty, damaged, not text, or longer than `MAX_UNPACKED`.
pub fn unpack(name: &str, bytes: Vec<u8>) -> Result<Document, DataError> {
    unpack_within(name, bytes, MAX_UNPACKED)
}

fn unpack_within(name: &str, bytes: Vec<u8>, limit: u64) -> Result<Document, DataError> {
    let fail = |cause: String, cure: &str| DataError {
        file: name.to_owned(),
        line: None,
        column: None,
        cause,
        cure: cure.to_owned(),
    };
    let damaged = |kind: &str, error: io::Error| {
        fail(format!("the {kind} data is damaged or cut off: {error}"), "fetch the file again")
    };
    // `take(limit + 1)` bounds the memory of a decompression bomb and still detects its excess.
    let mut plain = Vec::new();
    match bytes.as_slice() {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            lzma_rust2::XzReader::new_mem_limit(&bytes[..], true, MAX_DICTIONARY_KIB)
                .take(limit + 1)
                .read_to_end(&mut plain)
                .map_err(|error| damaged(".xz", error))?;
        }
        [0x1f, 0x8b, ..] => {
            flate2::read::MultiGzDecoder::new(&bytes[..])
                .take(limit + 1)
                .read_to_end(&mut plain)
                .map_err(|error| damaged(".gz", error))?;
        }
        [b'B', b'Z', b'h', ..] | [b'P', b'K', 3, 4, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return Err(fail(
                "is packed with bzip2, zip or zstd".into(),
                "unpack it, or pack it with xz or gzip",
            ));
        }
        _ => plain = bytes,
    }
    if plain.len() as u64 > limit {
        return Err(fail(format!("is longer than {limit} bytes unpacked"), "give a smaller file"));
    }
    // The magic of POSIX and GNU archives.
    if plain.get(257..262) == Some(b"ustar") {
        return Err(fail("is a tar archive".into(), "unpack it with `tar xf`, and name the files in it"));
    }
    if let Some(at) = plain.iter().position(|byte| *byte == 0) {
        return Err(fail(format!("is not text: byte {at} is zero"), "give a text file"));
    }
    let text = match String::from_utf8(plain) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    Document::new(name, text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gz(plain: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(plain).unwrap();
        packer.finish().unwrap()
    }

    /// `printf 'hello\n' | xz | od -An -tu1`
    const HELLO_XZ: [u8; 64] = [
        253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 22, 0, 0, 0, 116, 47, 229, 163, 1, 0,
        5, 104, 101, 108, 108, 111, 10, 0, 0, 0, 165, 96, 151, 241, 148, 246, 253, 224, 0, 1, 30, 6, 193, 47,
        164, 29, 31, 182, 243, 125, 1, 0, 0, 0, 0, 4, 89, 90,
    ];

    #[test]
    fn plain_and_packed_files_give_the_same_text() {
        for packed in [b"hello\n".to_vec(), gz(b"hello\n"), HELLO_XZ.to_vec()] {
            assert_eq!(unpack("x", packed).unwrap().text(), "hello\n");
        }
    }

    #[test]
    fn cut_or_flipped_packed_files_are_refused() {
        let packed = gz("a line of text that is packed\n".repeat(40).as_bytes());
        for whole in [packed, HELLO_XZ.to_vec()] {
            for length in [7, whole.len() / 2, whole.len() - 1] {
                assert!(
                    unpack("x", whole[..length].to_vec()).unwrap_err().cause.contains("damaged"),
                    "{length}"
                );
            }
            let mut flipped = whole.clone();
            flipped[whole.len() / 2] ^= 0x10;
            assert!(unpack("x", flipped).is_err());
        }
    }

    #[test]
    fn bombs_noise_and_empty_files_are_refused() {
        let bomb = gz(&vec![b'a'; 10_000]);
        assert!(unpack_within("x", bomb.clone(), 9_999).unwrap_err().cause.contains("longer"));
        assert!(unpack_within("x", bomb, 10_000).is_ok());
        assert!(unpack("x", vec![7, 0, 255, 3]).unwrap_err().cause.contains("not text"));
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        for archive in [gz(&tar), tar] {
            let error = unpack("x", archive).unwrap_err();
            assert!(error.cause == "is a tar archive" && error.cure.contains("tar xf"), "{error}");
        }
        assert!(unpack("x", Vec::new()).unwrap_err().cause.contains("empty"));
        assert!(unpack("x", b"PK\x03\x04...".to_vec()).unwrap_err().cause.contains("zip"));
        assert!(open(Path::new("/nonexistent")).unwrap_err().cause.contains("cannot be read"));
        assert_eq!(open(Path::new("/")).unwrap_err().cause, "is a directory");
        assert_eq!(open(Path::new("/dev/zero")).unwrap_err().cause, "is not a regular file");
    }
}
