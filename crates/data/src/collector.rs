//! Archives of directory documents, as CollecTor publishes them.
//!
//! The input is folders, files of many documents, and tar files, plain or packed with xz or gzip. Tar files are
//! streamed, so memory holds one document at a time.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::consensus::{self, Consensus};
use crate::descriptor::{self, Descriptor, ExtraInfo};
use crate::document::{DataError, Document};
use crate::open::{self, MAX_UNPACKED};

/// A document of an archive.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A server descriptor.
    Descriptor(Descriptor),
    /// An extra-info with a history of written bytes.
    ExtraInfo(ExtraInfo),
    /// A consensus of either flavour.
    Consensus(Consensus),
    /// A malformed document of these kinds, with the error.
    Broken(DataError),
    /// Another kind of document, with its place and what it is: votes, microdescriptors, those of bridges.
    Foreign(String),
}

/// Lists the input files below the paths in order of their names. Each is a tar file or a file of documents.
///
/// # Errors
/// If a path cannot be read.
pub fn inputs(paths: &[PathBuf]) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for path in paths {
        gather(path, &mut found).map_err(|error| unreadable(path, &error))?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn gather(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let about = path.metadata()?;
    if about.is_dir() {
        for entry in path.read_dir()? {
            gather(&entry?.path(), found)?;
        }
    } else if about.is_file() {
        found.push(path.to_owned());
    }
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> DataError {
    let cure = "check the path and its permissions, or fetch the file again".into();
    DataError { cure, ..DataError::unreadable(path.display().to_string(), error) }
}

/// Reads the documents of one input until `take` breaks.
///
/// # Errors
/// If the input is missing, damaged or truncated. `take` has received the documents before the fault.
pub fn read(path: &Path, take: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<(), DataError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let stream: Box<dyn Read> = if name.ends_with(".tar.xz") || name.ends_with(".txz") {
        Box::new(lzma_rust2::XzReader::new_mem_limit(BufReader::new(file), true, open::MAX_DICTIONARY_KIB))
    } else if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        Box::new(flate2::read::MultiGzDecoder::new(file))
    } else if name.ends_with(".tar") {
        Box::new(BufReader::new(file))
    } else {
        let document = open::open(path)?;
        let _ = documents(&document, take);
        return Ok(());
    };
    tar(path, stream, take).map_err(|error| unreadable(path, &error))
}

fn tar(path: &Path, stream: Box<dyn Read>, take: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> io::Result<()> {
    let mut archive = tar::Archive::new(stream);
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = format!("{}: {}", path.display(), String::from_utf8_lossy(&entry.path_bytes()));
        let mut bytes = Vec::new();
        entry.by_ref().take(MAX_UNPACKED + 1).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < entry.size().min(MAX_UNPACKED) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"));
        }
        let flow = match open::unpack(&name, bytes) {
            Ok(document) => documents(&document, take),
            Err(error) => take(Entry::Broken(error)),
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// CollecTor's line before a document.
const ANNOTATION: &str = "@type ";

/// Passes on the documents in a text.
fn documents(document: &Document, take: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> ControlFlow<()> {
    if consensus::looks_like(document) {
        return take(match consensus::read(document) {
            Ok(consensus) => Entry::Consensus(consensus),
            Err(error) => Entry::Broken(error),
        });
    }
    let text = document.text();
    let starts = |keyword: &str| text.starts_with(keyword) || text.contains(&format!("\n{keyword}"));
    // The first line may be an annotation, so the keyword can follow any line feed.
    for (keyword, is_descriptor) in [("router ", true), ("extra-info ", false)] {
        if !starts(keyword) {
            continue;
        }
        let before = text.lines().take_while(|line| !line.starts_with(keyword));
        let mut annotation = before.filter(|line| line.starts_with(ANNOTATION)).last();
        for (line, part) in parts(text, keyword) {
            let is_of_bridge = is_of_bridge(annotation, part);
            // The annotation of the next document is at the end of this part.
            annotation = part.lines().rfind(|line| line.starts_with(ANNOTATION));
            if is_of_bridge {
                take(Entry::Foreign(format!("{}:{line}: of a bridge", document.name())))?;
                continue;
            }
            let broken = |cause| Entry::Broken(document.error_at(line, cause, "the document is skipped"));
            let entry = if is_descriptor {
                descriptor::read(part).map_or_else(broken, Entry::Descriptor)
            } else {
                match descriptor::read_extra_info(part) {
                    Ok(Some(info)) => Entry::ExtraInfo(info),
                    Ok(None) => continue,
                    Err(cause) => broken(cause),
                }
            };
            take(entry)?;
        }
        return ControlFlow::Continue(());
    }
    take(Entry::Foreign(format!("{}: neither descriptors nor a consensus", document.name())))
}

/// Whether a document is of a bridge. A consensus names no bridges, and CollecTor puts a digest in place of their
/// signatures.
fn is_of_bridge(annotation: Option<&str>, part: &str) -> bool {
    let is_signed = part.contains("\nrouter-signature");
    annotation.is_some_and(|line| line.starts_with("@type bridge-"))
        || !is_signed && part.contains("\nrouter-digest ")
}

/// Splits a text before each line with this keyword; returns the line numbers too.
fn parts<'a>(text: &'a str, keyword: &str) -> Vec<(usize, &'a str)> {
    let mut starts = Vec::new();
    let mut at = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        if line.starts_with(keyword) {
            starts.push((number, at));
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(_, at)| *at).chain([text.len()]);
    starts.iter().zip(ends).map(|((line, begin), end)| (*line, &text[*begin..end])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str, bandwidth: &str) -> String {
        format!(
            "@type server-descriptor 1.0\nrouter {name} 10.0.0.1 9001 0 0\npublished 2019-08-01 12:00:00\n\
            fingerprint {}\nbandwidth {bandwidth}\nrouter-signature\n",
            "0A".repeat(20)
        )
    }

    fn all(path: &Path) -> (Vec<String>, Result<(), DataError>) {
        let mut seen = Vec::new();
        let result = read(path, &mut |entry| {
            seen.push(match entry {
                Entry::Descriptor(relay) => format!("relay {}", relay.nickname),
                Entry::ExtraInfo(_) => "extra".into(),
                Entry::Consensus(_) => "consensus".into(),
                Entry::Broken(error) => format!("broken line {}", error.line.unwrap_or(0)),
                Entry::Foreign(_) => "foreign".into(),
            });
            ControlFlow::Continue(())
        });
        (seen, result)
    }

    #[test]
    fn folders_files_and_tars_give_their_documents() {
        let folder = std::env::temp_dir().join(format!("tidegate-collector-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        let two = relay("a", "1 1 1") + &relay("b", "1 1") + &relay("c", "2 2 2");
        std::fs::write(folder.join("sub/many"), &two).unwrap();
        std::fs::write(folder.join("notes.txt"), "hello\n").unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        for (name, text) in [("x/1", relay("d", "3 3 3")), ("x/2", "\0".into()), ("x/3", "else\n".into())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_cksum();
            tar.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        let bytes = tar.into_inner().unwrap();
        std::fs::write(folder.join("whole.tar"), &bytes).unwrap();
        std::fs::write(folder.join("cut.tar"), &bytes[..600]).unwrap();

        let found = inputs(std::slice::from_ref(&folder)).unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(all(&folder.join("sub/many")).0, ["relay a", "broken line 8", "relay c"]);
        assert_eq!(all(&folder.join("notes.txt")).0, ["foreign"]);
        assert_eq!(all(&folder.join("whole.tar")).0, ["relay d", "broken line 0", "foreign"]);
        let (seen, result) = all(&folder.join("cut.tar"));
        assert!(seen.is_empty() && result.unwrap_err().cause.contains("cannot be read"));
        let bridge = relay("e", "1 1 1").replace("router-signature", "router-digest 89AB");
        let bare = bridge.split_once('\n').unwrap().1.to_owned();
        for text in [bridge.replace("@type server", "@type bridge-server"), bare] {
            std::fs::write(folder.join("bridge"), text.clone()).unwrap();
            assert_eq!(all(&folder.join("bridge")).0, ["foreign"]);
            std::fs::write(folder.join("mixed"), [text.clone(), relay("f", "1 1 1"), text].concat()).unwrap();
            assert_eq!(all(&folder.join("mixed")).0, ["foreign", "relay f", "foreign"]);
        }
        assert!(inputs(&[folder.join("absent")]).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
