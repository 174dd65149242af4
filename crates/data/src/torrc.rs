//! Configuration files of tor: options with their places, continued lines, quoted values and `%include`.
//!
//! The rules are those of the section "The configuration file format" of tor's manual.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::document::{DataError, Document};
use crate::kinds;

/// Maximum depth of `%include` (tor: `MAX_INCLUDE_RECURSION_LEVEL`).
const DEEPEST: usize = 31;
/// Maximum number of included files.
const MOST_FILES: usize = 1000;
/// Largest file that is read, bytes.
const LONGEST: u64 = 1 << 20;
/// Longest part of an option's name in an error, characters.
const LONGEST_SHOWN: usize = 60;
const INCLUDE: &str = "%include";

/// How a line changes an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `Option value`.
    Set,
    /// `+Option value`: adds to the values of a file of defaults.
    Add,
    /// `/Option`: clears the option.
    Clear,
}

/// One line that sets an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option as it is written, without `+` or `/`.
    pub name: String,
    /// Its value; may be empty.
    pub value: String,
    /// How the line changes the option.
    pub change: Change,
    /// File and line.
    pub file: String,
    /// Line of the name, from one.
    pub line: usize,
}

impl Setting {
    /// An error at this line.
    pub fn error(&self, cause: impl Into<String>, cure: impl Into<String>) -> DataError {
        let (file, cause, cure) = (self.file.clone(), cause.into(), cure.into());
        DataError { file, line: Some(self.line), column: None, cause, cure }
    }
}

/// Reads the settings of a torrc. An `%include` is a setting of that name.
///
/// # Errors
/// If the document is of another kind, or a quoted value is malformed.
pub fn read(document: &Document) -> Result<Vec<Setting>, DataError> {
    kinds::expect(document, "a torrc", &[kinds::TORRC])?;
    if kinds::of(document).is_none() {
        let cause = "sets neither a port nor another usual option of tor";
        return Err(document.error(cause, "name a torrc of tor, with a line such as `ORPort 9001`"));
    }
    Lines::new(document.name(), document.text()).collect()
}

/// Reads the settings of a torrc and of the files that it includes, in tor's order. As in tor, a relative path is relative to
/// the working directory.
///
/// # Errors
/// If a file cannot be read or is malformed, or `%include` is too deep or names too many files.
pub fn open(path: &Path) -> Result<Vec<Setting>, DataError> {
    let text = text_of(path)?;
    let document = Document::new(path.display().to_string(), text)?;
    let (mut settings, mut files) = (Vec::new(), 0);
    expand(read(&document)?, DEEPEST, &mut files, &mut settings)?;
    Ok(settings)
}

/// Reads a file of at most [`LONGEST`] bytes.
fn text_of(path: &Path) -> Result<String, DataError> {
    let name = path.display().to_string();
    let unreadable = |cause| DataError::unreadable(name.clone(), &cause);
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() || about.len() > LONGEST {
        let cause = if about.is_file() { "is longer than 1 MiB" } else { "is not a regular file" };
        let (line, column) = (None, None);
        return Err(DataError {
            file: name,
            line,
            column,
            cause: cause.into(),
            cure: "name a torrc of tor".into(),
        });
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Replaces each `%include` by the settings of the files that it names.
fn expand(
    settings: Vec<Setting>,
    depth: usize,
    files: &mut usize,
    found: &mut Vec<Setting>,
) -> Result<(), DataError> {
    for setting in settings {
        if setting.name != INCLUDE {
            found.push(setting);
            continue;
        }
        let included = matching(&setting)?;
        *files += included.len();
        if depth == 0 || *files > MOST_FILES {
            let cause = format!("`%include` is deeper than {DEEPEST} files, or names more than {MOST_FILES}");
            return Err(setting.error(cause, "does a file include itself?"));
        }
        for path in included {
            let text = text_of(&path)
                .map_err(|why| setting.error(format!("{} {}", why.file, why.cause), why.cure))?;
            let lines = Lines::new(&path.display().to_string(), &text).collect::<Result<_, _>>()?;
            expand(lines, depth - 1, files, found)?;
        }
    }
    Ok(())
}

/// The files that an `%include` names: files that match, and the files in folders that match, in lexical order.
fn matching(include: &Setting) -> Result<Vec<PathBuf>, DataError> {
    let wildcard = include.value.contains(['*', '?']);
    let paths = if wildcard { expand_wildcards(&include.value) } else { vec![PathBuf::from(&include.value)] };
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        let unreadable = |cause: std::io::Error| {
            include.error(format!("{} cannot be read: {cause}", path.display()), "check the path")
        };
        let entries = std::fs::read_dir(&path).map_err(unreadable)?;
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let mut inside: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        inside.retain(|path| path.is_file() && !is_hidden(path));
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Paths that match a pattern with `*` and `?`, part by part, in lexical order.
fn expand_wildcards(pattern: &str) -> Vec<PathBuf> {
    let mut paths = vec![if pattern.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() }];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for path in paths {
            if !part.contains(['*', '?']) {
                let path = path.join(part);
                next.extend(path.exists().then_some(path));
                continue;
            }
            let folder = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let shown = |name: &String| part.starts_with('.') || !name.starts_with('.');
            let names = names.filter(|name| shown(name) && matches(part.as_bytes(), name.as_bytes()));
            next.extend(names.map(|name| path.join(name)));
        }
        next.sort();
        paths = next;
    }
    paths
}

/// Whether a name matches a pattern with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
        (Some((wanted, rest)), Some((byte, name))) => wanted == byte && matches(rest, name),
        _ => false,
    }
}

/// The settings of a text, one by one. It ends after the first error.
struct Lines<'a> {
    file: String,
    rest: &'a str,
    line: usize,
}

impl Lines<'_> {
    fn new<'a>(file: &str, text: &'a str) -> Lines<'a> {
        Lines { file: file.to_owned(), rest: text, line: 1 }
    }

    /// Takes the first `length` bytes.
    fn take(&mut self, length: usize) -> &str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    /// Skips blank and commented lines.
    fn skip_blank(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest.starts_with('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    /// A value without quotes: up to the end of the line or a comment. A continued line goes on behind comments.
    fn bare(&mut self) -> String {
        let (mut value, mut continued) = (String::new(), false);
        loop {
            value.push_str(self.take_while(|c| !matches!(c, '\n' | '#' | '\\')));
            if let Some(end) = ["\\\n", "\\\r\n"].into_iter().find(|end| self.rest.starts_with(end)) {
                continued = true;
                self.take(end.len());
            } else if self.rest.starts_with('\\') {
                value.push_str(self.take(1));
            } else if self.rest.starts_with('#') && continued {
                self.take_while(|c| c != '\n');
                self.take(usize::from(self.rest.starts_with('\n')));
            } else {
                self.take_while(|c| c != '\n');
                return value.trim().to_owned();
            }
        }
    }

    /// A quoted value with C's escapes; the cause if it is malformed.
    fn quoted(&mut self) -> Result<String, &'static str> {
        let mut value = Vec::new();
        self.take(1);
        loop {
            value.extend_from_slice(self.take_while(|c| !matches!(c, '\n' | '"' | '\\')).as_bytes());
            let mut next = self.rest.bytes();
            match (next.next(), next.next()) {
                (Some(b'"'), _) => {
                    self.take(1);
                    break;
                }
                (Some(b'\\'), Some(escape)) => {
                    let (byte, length) =
                        unescape(escape, &self.rest.as_bytes()[2..]).ok_or("has an unknown escape")?;
                    value.push(byte);
                    self.take(2 + length);
                }
                _ => return Err("has an opening quotation mark and no closing one"),
            }
        }
        self.take_while(|c| matches!(c, ' ' | '\t' | '\r'));
        if !self.rest.is_empty() && !self.rest.starts_with(['\n', '#']) {
            return Err("has text behind the closing quotation mark");
        }
        self.take_while(|c| c != '\n');
        String::from_utf8(value).map_err(|_| "is not UTF-8")
    }
}

/// The byte of an escape, and how many bytes of `rest` it takes.
fn unescape(escape: u8, rest: &[u8]) -> Option<(u8, usize)> {
    let digits = |digits: &[u8], radix| u8::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok();
    Some(match escape {
        b'n' => (b'\n', 0),
        b't' => (b'\t', 0),
        b'r' => (b'\r', 0),
        b'\\' | b'"' | b'\'' => (escape, 0),
        b'x' => (digits(rest.get(..2)?, 16)?, 2),
        b'0'..=b'7' => {
            let more = rest.iter().take(2).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            (digits(&[&[escape], &rest[..more]].concat(), 8)?, more)
        }
        _ => return None,
    })
}

impl Iterator for Lines<'_> {
    type Item = Result<Setting, DataError>;

    fn next(&mut self) -> Option<Result<Setting, DataError>> {
        self.skip_blank();
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        let key = self.take_while(|c| !c.is_whitespace() && c != '#').to_owned();
        let (change, name) = match key.split_at_checked(1) {
            Some(("+", name)) => (Change::Add, name),
            Some(("/", name)) => (Change::Clear, name),
            _ => (Change::Set, &*key),
        };
        self.take_while(|c| matches!(c, ' ' | '\t'));
        let value = if self.rest.starts_with('"') { self.quoted() } else { Ok(self.bare()) };
        let mut setting =
            Setting { name: name.to_owned(), value: String::new(), change, file: self.file.clone(), line };
        match value {
            Ok(value) => {
                setting.value = value;
                Some(Ok(setting))
            }
            Err(why) => {
                self.rest = "";
                let name: String = setting.name.chars().take(LONGEST_SHOWN).collect();
                let cause = format!("the value of `{name}` {why}");
                Some(Err(setting.error(cause, "write \"text\", with \\\" and \\\\ inside")))
            }
        }
    }
}

/// Options by name in lower case. An option keeps all its values, in order.
pub(crate) type Options = BTreeMap<String, Vec<String>>;

/// Maximum depth of `%include` in the files of a simulation.
const DEEPEST_OF_SIMULATIONS: usize = 8;

/// Adds the options of a file of a simulation and of the files that it includes. A missing or malformed file adds nothing.
pub(crate) fn read_options(path: &Path, options: &mut Options) {
    include(path, options, DEEPEST_OF_SIMULATIONS);
}

fn include(path: &Path, options: &mut Options, depth: usize) {
    let (Ok(text), 1..) = (text_of(path), depth) else { return };
    for setting in Lines::new("", &text).map_while(Result::ok) {
        if setting.name == INCLUDE {
            // Paths are relative to the folder where the host's tor runs.
            include(&path.parent().unwrap_or(Path::new("")).join(&setting.value), options, depth - 1);
        } else {
            options.entry(setting.name.to_lowercase()).or_default().push(setting.value);
        }
    }
}

/// Adds the options of a command line: `--BandwidthRate 1073741824`.
pub(crate) fn read_arguments(words: &[&str], options: &mut Options) {
    for pair in words.windows(2) {
        if let Some(key) = pair[0].strip_prefix("--") {
            options.entry(key.to_lowercase()).or_default().push(pair[1].to_owned());
        }
    }
}

/// A size in bytes; the last value of the option counts.
pub(crate) fn bytes(options: &Options, key: &str) -> Option<u64> {
    size(options.get(key)?.last()?)
}

/// Splits a quantity into its number and its unit in lower case.
fn quantity(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim().to_lowercase()))
}

/// Reads a size in bytes, as tor does: "5 MBytes".
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = quantity(text)?;
    let unit = match &*unit {
        "" | "b" | "byte" | "bytes" => 1.0,
        "kb" | "kbyte" | "kbytes" | "kilobyte" | "kilobytes" => 1024.0,
        "mb" | "m" | "mbyte" | "mbytes" | "megabyte" | "megabytes" => 1_048_576.0,
        "gb" | "gbyte" | "gbytes" | "gigabyte" | "gigabytes" => 1_073_741_824.0,
        "tb" | "tbyte" | "tbytes" | "terabyte" | "terabytes" => 1_099_511_627_776.0,
        "kbit" | "kbits" | "kilobit" | "kilobits" => 128.0,
        "mbit" | "mbits" | "megabit" | "megabits" => 131_072.0,
        "gbit" | "gbits" | "gigabit" | "gigabits" => 134_217_728.0,
        _ => return None,
    };
    Some((number * unit) as u64)
}

/// Reads a time in seconds, as tor does: "2 days". A bare number is in seconds.
pub fn seconds(text: &str) -> Option<u64> {
    let (number, unit) = quantity(text)?;
    let unit = match &*unit {
        "" | "second" | "seconds" | "sec" | "secs" => 1.0,
        "minute" | "minutes" | "min" | "mins" => 60.0,
        "hour" | "hours" => 3600.0,
        "day" | "days" => 86_400.0,
        "week" | "weeks" => 604_800.0,
        // Tor's month is a twelfth of 365.25 days.
        "month" | "months" => 2_629_728.0,
        _ => return None,
    };
    Some((number * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("tidegate-torrc-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }
        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn lines(text: &str) -> Vec<(String, String)> {
        let settings = Lines::new("torrc", text).collect::<Result<Vec<_>, _>>().unwrap();
        settings.into_iter().map(|setting| (setting.name, setting.value)).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn simulations_include_files_and_sizes_have_tors_units() {
        let folder = Folder::new("simulation");
        let torrc = folder
            .write("torrc", "# a comment\n%include common\nBandwidthRate 5 MBytes # fast\n%include torrc\n");
        folder.write("common", "BandwidthRate 1024000\nExitPolicy \"reject *:*\"\nBandwidthBurst 8 Mbits\n");
        let mut options = Options::new();
        read_options(&torrc, &mut options);
        read_arguments(&["-f", "torrc", "--Nickname", "relay1"], &mut options);
        assert_eq!(bytes(&options, "bandwidthrate"), Some(5 << 20), "the last one counts");
        assert_eq!(bytes(&options, "bandwidthburst"), Some(1 << 20));
        assert_eq!(options["exitpolicy"][0], "reject *:*");
        assert_eq!(options["nickname"], ["relay1"]);
        assert_eq!(bytes(&options, "nickname"), None);
        read_options(&folder.0.join("absent"), &mut options);
    }

    #[test]
    fn lines_continue_and_values_are_quoted() {
        let text = "ExitPolicy accept *:80, \\\n# web only\n  accept *:443\nContactInfo \"a \\\"b\\\" \\x21 # c\" # d\nNickname x#y\n\
            ORPort\t9001 \r\n  RunAsDaemon 1\nHeartbeatPeriod\nExitPolicy accept *:1 \\\r\n, reject *:*\r\n";
        assert_eq!(
            lines(text),
            [
                pair("ExitPolicy", "accept *:80,   accept *:443"),
                pair("ContactInfo", "a \"b\" ! # c"),
                pair("Nickname", "x"),
                pair("ORPort", "9001"),
                pair("RunAsDaemon", "1"),
                pair("HeartbeatPeriod", ""),
                pair("ExitPolicy", "accept *:1 , reject *:*"),
            ]
        );
        assert_eq!(lines("# only a comment"), []);
        let changes: Vec<Change> =
            Lines::new("", "ORPort 1\n+ORPort 2\n/ORPort\n").map(|line| line.unwrap().change).collect();
        assert_eq!(changes, [Change::Set, Change::Add, Change::Clear]);
    }

    #[test]
    fn malformed_values_are_errors_with_their_line() {
        for (text, cause) in [
            ("\nContactInfo \"a", "no closing one"),
            ("\nContactInfo \"a\nb\"", "no closing one"),
            ("\nContactInfo \"a\" b", "behind the closing"),
            ("\nContactInfo \"\\q\"", "unknown escape"),
            ("\nContactInfo \"\\xff\"", "not UTF-8"),
        ] {
            let error = Lines::new("torrc", text).find_map(Result::err).unwrap();
            assert_eq!((&*error.file, error.line), ("torrc", Some(2)), "{text}");
            assert!(error.cause.contains(cause), "{error}");
        }
    }

    #[test]
    fn included_folders_and_wildcards_are_read_in_lexical_order() {
        let folder = Folder::new("include");
        let at = folder.0.display();
        folder.write("d/b", "Nickname b\n");
        folder.write("d/a", "Nickname a\n");
        folder.write("d/.hidden", "Nickname hidden\n");
        folder.write("d/sub/c", "Nickname sub\n");
        folder.write("e1.conf", "Nickname e1\n");
        folder.write("e0.conf", "# nothing\n");
        let torrc =
            folder.write("torrc", &format!("ORPort 1\n%include {at}/d\n%include \"{at}/e?.*\"\nORPort 2\n"));
        let values: Vec<String> = open(&torrc).unwrap().into_iter().map(|setting| setting.value).collect();
        assert_eq!(values, ["1", "a", "b", "e1", "2"]);
        let torrc = folder.write("missing", &format!("ORPort 1\n%include {at}/none\n"));
        let error = open(&torrc).unwrap_err();
        assert!(error.line == Some(2) && error.cause.contains("none cannot be read"), "{error}");
        let own = folder.write("own", &format!("ORPort 1\n%include {at}/own\n"));
        assert!(open(&own).unwrap_err().cause.contains("deeper than 31"));
    }

    #[test]
    fn times_have_tors_units() {
        for (text, wanted) in [
            ("90", Some(90)),
            ("2 hours", Some(7200)),
            ("1 week", Some(604_800)),
            ("1 fortnight", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), wanted, "{text}");
        }
    }
}
