//! Options in configuration files of tor, with `%include`.

use std::collections::BTreeMap;
use std::path::Path;

/// Maximum depth of `%include`.
const DEEPEST: usize = 8;
/// Largest file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Options by name in lower case. An option keeps all its values, in order.
pub(crate) type Options = BTreeMap<String, Vec<String>>;

/// Adds the options of a file and of the files that it includes. A missing file adds nothing.
pub(crate) fn read(path: &Path, options: &mut Options) {
    include(path, options, DEEPEST);
}

fn include(path: &Path, options: &mut Options, depth: usize) {
    let is_small = std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() <= LONGEST);
    let (true, 1..) = (is_small, depth) else { return };
    let Ok(text) = std::fs::read_to_string(path) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((key, value)) = line.split_once(char::is_whitespace) else { continue };
        let value = value.trim().trim_matches('"');
        if key == "%include" {
            // Paths are relative to the folder where the host's tor runs.
            include(&path.parent().unwrap_or(Path::new("")).join(value), options, depth - 1);
        } else {
            options.entry(key.to_lowercase()).or_default().push(value.to_owned());
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

/// Reads a size in bytes, as tor does: "5 MBytes".
pub fn size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim().to_lowercase().as_str() {
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
    Some((number.parse::<f64>().ok()? * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_include_files_and_sizes_have_tors_units() {
        let folder = std::env::temp_dir().join(format!("tidegate-torrc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("torrc", "# a comment\n%include common\nBandwidthRate 5 MBytes # fast\n%include torrc\n");
        write("common", "BandwidthRate 1024000\nExitPolicy \"reject *:*\"\nBandwidthBurst 8 Mbits\n");
        let mut options = Options::new();
        read(&folder.join("torrc"), &mut options);
        read_arguments(&["-f", "torrc", "--Nickname", "relay1"], &mut options);
        assert_eq!(bytes(&options, "bandwidthrate"), Some(5 << 20), "the last one counts");
        assert_eq!(bytes(&options, "bandwidthburst"), Some(1 << 20));
        assert_eq!(options["exitpolicy"][0], "reject *:*");
        assert_eq!(options["nickname"], ["relay1"]);
        assert_eq!(bytes(&options, "nickname"), None);
        read(&folder.join("absent"), &mut options);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
