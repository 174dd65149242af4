//! Bodies of the fuzz targets. Each takes any bytes; it panics if a reader or a machine misbehaves.
//!
//! `fuzz_targets/` has a binary for libFuzzer per body. A test runs every body over its corpus and over mutations of it,
//! because fuzzing needs a nightly compiler.

#![forbid(unsafe_code)]

pub mod cells;
pub mod documents;
pub mod more;
pub mod overlay;
pub mod proxy;
pub mod stream;

/// Turns bytes into a typed value, as libFuzzer does. `None` if the bytes do not suffice.
fn typed<'a, T: arbitrary::Arbitrary<'a>>(input: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(arbitrary::Unstructured::new(input)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use tidegate_control::random::Seed;

    use super::*;

    type Body = fn(&[u8]);

    /// Every target: its name and its body.
    const TARGETS: &[(&str, Body)] = &[
        ("data_documents", documents::data_documents),
        ("directory_documents", documents::directory_documents),
        ("more_datagram", more::more_datagram),
        ("more_files", more::more_files),
        ("proto_cells", cells::proto_cells),
        ("proto_messages", cells::proto_messages),
        ("proto_overlay", overlay::proto_overlay),
        ("proxy", proxy::proxy),
        ("stream_datagrams", stream::stream_datagrams),
        ("stream_wire", stream::stream_wire),
    ];

    /// Mutations of each file of a corpus, and the number of random inputs.
    const TRIES: usize = 200;

    fn names(folder: &str) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder).expect("a folder of this crate");
        let stem = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
        entries.map(|entry| stem(&entry.expect("readable").path())).collect()
    }

    #[test]
    fn every_target_has_a_binary_and_a_corpus() {
        let bodies: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names("fuzz_targets"), bodies);
        assert_eq!(names("corpus"), bodies);
    }

    #[test]
    fn bodies_accept_the_corpus_its_mutations_and_random_bytes() {
        for &(name, body) in TARGETS {
            let mut random = Seed::root(1).fork(name).random();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let entries = fs::read_dir(folder).expect("a corpus");
            let mut corpus: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
            corpus.sort();
            for path in corpus {
                let bytes = fs::read(&path).expect("readable");
                body(&bytes);
                for _ in 0..TRIES {
                    let mut bytes = bytes.clone();
                    for _ in 0..=random.below(4) {
                        let at = random.below(bytes.len().max(1));
                        match random.below(3) {
                            0 => bytes.truncate(at),
                            1 => bytes.insert(at.min(bytes.len()), random.bits() as u8),
                            _ => {
                                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.bits() as u8)
                            }
                        }
                    }
                    body(&bytes);
                }
            }
            for _ in 0..TRIES {
                let length = random.below(4000);
                body(&(0..length).map(|_| random.bits() as u8).collect::<Vec<u8>>());
            }
        }
    }
}
