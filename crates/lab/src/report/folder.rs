//! Folders of results, written atomically.
//!
//! A new folder is written beside its destination and exchanged with it in one step. Readers always see the complete
//! old or new results, even if the process dies. Only files that a manifest lists are ever deleted.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::places::{exchange, is_same, link_to, sync_folder};
use super::staged::{Staged, synced};
use crate::input::InputError;
use crate::results::{VERSION, brief, flatten_text};

/// Value of `tool` in the manifest of our folders.
const MARK: &str = "tidegate";
/// Name of the manifest in every folder of results.
const MANIFEST: &str = "manifest.json";

/// Identity of results: two folders with equal contents hold the same study.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// The scenario's name, or the command's.
    pub name: String,
    /// Everything that the results depend on.
    pub parameters: Value,
}

/// A file of results: its name in the folder, and its bytes.
pub type ResultFile = (String, Vec<u8>);

fn error(place: &Path, cause: impl Into<String>) -> InputError {
    InputError::new(place.display().to_string(), cause, "choose another place with --out")
}

/// The manifest of a folder, if it is one of ours.
pub(crate) fn read_manifest(place: &Path) -> Option<Value> {
    let bytes = fs::read(place.join(MANIFEST)).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|manifest: &Value| manifest["tool"] == MARK)
}

/// The identity of the results in a folder; `None` if it holds no results of ours.
pub fn contents_of(place: &Path) -> Option<Contents> {
    read_manifest(place).map(|manifest| Contents {
        name: manifest["name"].as_str().unwrap_or("unnamed").to_owned(),
        parameters: manifest["parameters"].clone(),
    })
}

/// Whether the manifest of a folder lists this file.
pub fn lists(place: &Path, name: &str) -> bool {
    read_manifest(place).is_some_and(|manifest| listed(&manifest).contains(name))
}

/// The files that a manifest lists.
fn listed(manifest: &Value) -> BTreeSet<String> {
    let files = manifest["files"].as_array().into_iter().flatten();
    files.filter_map(|name| name.as_str()).map(str::to_owned).collect()
}

/// Checks that results may be written to `place`. Call it before a long run.
///
/// Refuses other files, another scenario, and other parameters. With `force` it accepts other results of ours.
///
/// # Errors
/// If the place is refused; the message names the first difference.
pub fn check_place(place: &Path, contents: &Contents, force: bool) -> Result<(), InputError> {
    match fs::metadata(place) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return check_new(place),
        Err(cause) => return Err(error(place, format!("cannot be accessed: {cause}"))),
        Ok(about) if !about.is_dir() => return Err(error(place, "exists and is not a directory")),
        Ok(about) if about.permissions().readonly() => {
            let cure = "allow its owner to write there, or choose another place with --out";
            return Err(InputError::new(place.display().to_string(), "is read-only", cure));
        }
        Ok(_) if fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none()) => return Ok(()),
        Ok(_) => {}
    }
    let Some(there) = contents_of(place) else {
        return Err(error(place, "exists and does not hold results of tidegate"));
    };
    if force || there == *contents {
        return Ok(());
    }
    let cause = if there.name == contents.name {
        format!("holds results of `{}` with other parameters: {}", there.name, difference(&there, contents))
    } else {
        format!("holds results of `{}`, and these are of `{}`", there.name, contents.name)
    };
    let cure = "choose another place with --out, or replace the files of its manifest with --force";
    Err(InputError::new(place.display().to_string(), cause, cure))
}

/// Checks that a folder can be made at this place.
///
/// # Errors
/// If the folder above cannot be written.
pub fn check_new(place: &Path) -> Result<(), InputError> {
    let above = place.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("."));
    let probe = above.join(format!(".tidegate-{}", std::process::id()));
    fs::create_dir(&probe)
        .and_then(|()| fs::remove_dir(&probe))
        .map_err(|cause| error(place, format!("cannot be written: {cause}")))
}

/// The first parameter that differs.
fn difference(there: &Contents, here: &Contents) -> String {
    let (there, here) = (flatten_text(&there.parameters), flatten_text(&here.parameters));
    let keys: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
    let differs = keys.into_iter().find(|key| there.get(*key) != here.get(*key));
    differs.map_or_else(String::new, |key| {
        let show = |value: Option<&String>| brief(value.map_or("nothing", String::as_str));
        format!("`{key}` is {} there, {} here", show(there.get(key)), show(here.get(key)))
    })
}

/// Creates a new folder with the next free number: `base/1`, `base/2`, ...
///
/// # Errors
/// If it cannot be made.
pub fn numbered(base: &Path) -> Result<PathBuf, InputError> {
    let fail = |cause: io::Error| error(base, format!("cannot be written: {cause}"));
    fs::create_dir_all(base).map_err(fail)?;
    let entries = fs::read_dir(base).map_err(fail)?.filter_map(Result::ok);
    let last = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max();
    for number in last.unwrap_or(0) + 1.. {
        let place = base.join(number.to_string());
        match fs::create_dir(&place) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| place).map_err(fail),
        }
    }
    unreachable!("there are numbers left")
}

/// Points the link `latest` at a numbered folder beside it. Leaves a `latest` that is not a link.
pub fn point_latest(place: &Path) {
    let (Some(base), Some(name)) = (place.parent(), place.file_name()) else { return };
    let (link, fresh) = (base.join("latest"), base.join(format!(".latest-{}", std::process::id())));
    if fs::symlink_metadata(&link).is_ok_and(|about| !about.is_symlink()) {
        return;
    }
    // The link is only a convenience, so failures are ignored.
    if link_to(Path::new(name), &fresh).is_ok() && fs::rename(&fresh, &link).is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

/// Writes files and their manifest into a folder in one step. Replaces the files of the old manifest and keeps all
/// others.
///
/// # Errors
/// If a file that no manifest lists has a needed name, or the folder cannot be written.
pub fn write(
    files: Vec<ResultFile>,
    contents: &Contents,
    more: Value,
    place: &Path,
) -> Result<(), InputError> {
    // Resolve links such as `latest`, which would otherwise be replaced.
    let place = &fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    let name = place.file_name().map_or("results".into(), |name| name.to_string_lossy().into_owned());
    let parent = match place.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let fresh = parent.join(format!(".{name}.new-{}", std::process::id()));
    let old = read_manifest(place).map(|manifest| listed(&manifest)).unwrap_or_default();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).chain([MANIFEST]).collect();
    let mut manifest = json!({
        "tool": MARK,
        "version": VERSION,
        "name": contents.name,
        "parameters": contents.parameters,
        "files": names,
    });
    manifest.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let manifest = (MANIFEST.to_owned(), format!("{manifest:#}\n").into_bytes());
    let all = || files.iter().chain([&manifest]);
    let exchanged =
        prepare(all(), &old, &fresh, place).and_then(|()| exchange(&fresh, place)).inspect_err(|_| {
            // Safe: it holds only new files and hard links, the old folder is still in place.
            let _ = fs::remove_dir_all(&fresh);
        });
    let written = match exchanged {
        Err(cause) if is_mounted(&cause) => write_into(all(), &old, place),
        // After the exchange, `fresh` holds the old folder.
        Ok(()) if fresh.exists() => clear(&fresh, place, &old),
        other => other,
    };
    written
        .and_then(|()| sync_folder(&parent))
        .map_err(|cause| error(place, format!("cannot be written: {cause}")))
}

/// Whether this error says that the folder is a mount point, which cannot be exchanged.
fn is_mounted(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

/// Replaces the files in a folder one by one, the manifest last: readers of a mount point may see new files beside an old
/// manifest, but never a part of a file.
fn write_into<'a>(
    files: impl Iterator<Item = &'a ResultFile>,
    old: &BTreeSet<String>,
    place: &Path,
) -> io::Result<()> {
    let staged = Staged::new(place)?;
    let mut names = BTreeSet::new();
    for (file, bytes) in files {
        if !old.contains(file) && file != MANIFEST && place.join(file).exists() {
            return Err(taken(&place.join(file)));
        }
        staged.write(file, bytes)?;
        names.insert(file.as_str());
    }
    staged.publish_last(MANIFEST)?;
    for file in old.iter().filter(|file| !names.contains(file.as_str())) {
        fs::remove_file(place.join(file))?;
    }
    sync_folder(place)
}

/// Fills the folder `fresh` with the new files and with everything that stays of the old folder.
fn prepare<'a>(
    files: impl Iterator<Item = &'a ResultFile>,
    old: &BTreeSet<String>,
    fresh: &Path,
    place: &Path,
) -> io::Result<()> {
    fs::create_dir_all(fresh)?;
    for (file, bytes) in files {
        synced(&fresh.join(file), bytes)?;
    }
    if place.exists() {
        // A private folder stays private.
        fs::set_permissions(fresh, fs::metadata(place)?.permissions())?;
        for entry in fs::read_dir(place)? {
            let name = entry?.file_name();
            if !old.contains(name.to_string_lossy().as_ref()) {
                carry(&place.join(&name), &fresh.join(&name))?;
            }
        }
    }
    sync_folder(fresh)
}

/// Copies a file or folder to another place by hard links.
fn carry(from: &Path, to: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(from)?;
    if about.is_dir() {
        if to.exists() {
            return Err(taken(from));
        }
        fs::create_dir(to)?;
        fs::set_permissions(to, about.permissions())?;
        return fs::read_dir(from)?.try_for_each(|entry| {
            let name = entry?.file_name();
            carry(&from.join(&name), &to.join(&name))
        });
    }
    fs::hard_link(from, to).map_err(|cause| match cause.kind() {
        io::ErrorKind::AlreadyExists => taken(from),
        _ => cause,
    })
}

fn taken(path: &Path) -> io::Error {
    io::Error::other(format!("{} exists, and no manifest lists it", path.display()))
}

/// Removes an old folder: files of ours, and other files that the new folder links to. Files that appeared since
/// then move to the new folder.
fn clear(old: &Path, new: &Path, ours: &BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(old)? {
        let name = entry?.file_name();
        let (here, there) = (old.join(&name), new.join(&name));
        let about = fs::symlink_metadata(&here)?;
        let kept = fs::symlink_metadata(&there).ok();
        if ours.contains(name.to_string_lossy().as_ref()) && !about.is_dir() {
            fs::remove_file(&here)?;
        } else if about.is_dir() && kept.as_ref().is_some_and(fs::Metadata::is_dir) {
            clear(&here, &there, &BTreeSet::new())?;
        } else if kept.as_ref().is_some_and(|kept| is_same(kept, &about)) {
            fs::remove_file(&here)?;
        } else if kept.is_none() {
            fs::rename(&here, &there)?;
        }
    }
    fs::remove_dir(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(name: &str, duration: &str) -> Contents {
        Contents { name: name.into(), parameters: json!({ "duration": duration }) }
    }

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("tidegate-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        root
    }

    fn put(names: &[&str], place: &Path) -> Result<(), InputError> {
        let files = names.iter().map(|name| ((*name).to_owned(), vec![1])).collect();
        write(files, &contents("x", "2 s"), json!({}), place)
    }

    #[test]
    fn only_files_of_the_manifest_are_replaced() {
        let root = scratch("replaced");
        let place = root.join("out");
        put(&["a", "b"], &place).unwrap();
        fs::create_dir(place.join("notes")).unwrap();
        fs::write(place.join("notes/idea.txt"), "precious").unwrap();
        fs::write(place.join("thesis.tex"), "precious").unwrap();
        link_to(Path::new("thesis.tex"), &place.join("link")).unwrap();
        put(&["a", "c"], &place).unwrap();
        assert!(!place.join("b").exists() && place.join("c").exists(), "the old results are gone");
        for kept in ["notes/idea.txt", "thesis.tex", "link"] {
            assert_eq!(fs::read_to_string(place.join(kept)).unwrap(), "precious", "{kept}");
        }
        assert!(fs::symlink_metadata(place.join("link")).unwrap().is_symlink());
        let said = put(&["thesis.tex"], &place).unwrap_err().to_string();
        assert!(said.contains("no manifest lists it"), "{said}");
        assert_eq!(fs::read_to_string(place.join("thesis.tex")).unwrap(), "precious");
        assert!(place.join("c").exists(), "the results stay when new ones cannot be written");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "nothing is left beside");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_mount_point_is_written_file_by_file() {
        let root = scratch("mounted");
        fs::write(root.join("note"), "mine").unwrap();
        let files = |names: &[&str]| -> Vec<ResultFile> {
            names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
        };
        write_into(files(&["a", "b", MANIFEST]).iter(), &BTreeSet::new(), &root).unwrap();
        let old = ["a".to_owned(), "b".to_owned(), MANIFEST.to_owned()].into();
        write_into(files(&["b", "c", MANIFEST]).iter(), &old, &root).unwrap();
        let mut there: Vec<_> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort_unstable();
        assert_eq!(there, ["b", "c", "manifest.json", "note"]);
        let said = write_into(files(&["note"]).iter(), &old, &root).unwrap_err().to_string();
        assert!(said.contains("no manifest lists it"), "{said}");
        assert!(
            is_mounted(&io::ErrorKind::ResourceBusy.into()) && !is_mounted(&io::ErrorKind::NotFound.into())
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = scratch("mode");
        let place = root.join("out");
        fs::create_dir(&place).unwrap();
        let mode = || fs::metadata(&place).unwrap().permissions().mode() & 0o777;
        let set = |mode: u32| fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        set(0o700);
        put(&["a"], &place).unwrap();
        put(&["b"], &place).unwrap();
        assert_eq!(mode(), 0o700, "a private folder stays private");
        set(0o500);
        let said = check_place(&place, &contents("x", "2 s"), true).unwrap_err().to_string();
        assert!(said.contains("is read-only"), "{said}");
        set(0o700);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn another_study_is_refused_and_named() {
        let root = scratch("refused");
        let place = root.join("out");
        put(&["a"], &place).unwrap();
        let said = |contents: &Contents| check_place(&place, contents, false).unwrap_err().to_string();
        assert!(check_place(&place, &contents("x", "2 s"), false).is_ok());
        let other = said(&contents("y", "2 s"));
        assert!(other.contains("holds results of `x`, and these are of `y`"), "{other}");
        let longer = said(&contents("x", "3 s"));
        assert!(
            longer.contains("`duration` is 2 s there, 3 s here") && longer.contains("--force"),
            "{longer}"
        );
        assert!(check_place(&place, &contents("y", "2 s"), true).is_ok(), "forced");

        fs::write(place.join(MANIFEST), "{").unwrap();
        assert!(check_place(&place, &contents("x", "2 s"), true).is_err(), "not ours, whatever is wanted");
        assert!(check_place(&place.join("a"), &contents("x", "2 s"), true).is_err(), "a file");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn numbers_go_on_and_the_link_follows() {
        let root = scratch("numbers");
        let base = root.join("x");
        assert_eq!(numbered(&base).unwrap(), base.join("1"));
        fs::create_dir(base.join("7")).unwrap();
        let place = numbered(&base).unwrap();
        assert_eq!(place, base.join("8"));
        put(&["a"], &place).unwrap();
        point_latest(&place);
        assert!(base.join("latest/a").exists());
        put(&["b"], &base.join("latest")).unwrap();
        assert!(base.join("8/b").exists() && fs::symlink_metadata(base.join("latest")).unwrap().is_symlink());
        fs::remove_dir_all(&root).unwrap();
    }
}
