//! A text document, and the error of all readers.

use std::{fmt, io};

/// A text with a name for error messages.
#[derive(Clone, Debug)]
pub struct Document {
    name: String,
    text: String,
}

impl Document {
    /// Makes a document. `name` is usually the path. A byte order mark is dropped.
    ///
    /// # Errors
    /// If the text is empty.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Result<Document, DataError> {
        let mut document = Document { name: name.into(), text: text.into() };
        if document.text.starts_with('\u{feff}') {
            document.text.remove(0);
        }
        if document.text.trim_ascii().is_empty() {
            return Err(document.error("the file is empty", "give a file with content"));
        }
        Ok(document)
    }

    /// The name in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first line that is not blank.
    pub(crate) fn first_line(&self) -> &str {
        self.text.lines().find(|line| !line.trim().is_empty()).unwrap_or("")
    }

    /// Lines with their numbers, from one.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// An error about the whole document.
    pub fn error(&self, cause: impl Into<String>, cure: impl Into<String>) -> DataError {
        DataError {
            file: self.name.clone(),
            line: None,
            column: None,
            cause: cause.into(),
            cure: cure.into(),
        }
    }

    /// An error at a line.
    pub(crate) fn error_at(
        &self,
        line: usize,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) -> DataError {
        DataError { line: Some(line), ..self.error(cause, cure) }
    }

    /// An error at a byte of the text. The message shows line and column.
    pub(crate) fn error_at_byte(
        &self,
        byte: usize,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) -> DataError {
        let (line, column) = self.position(byte);
        DataError { line: Some(line), column: Some(column), ..self.error(cause, cure) }
    }

    /// Line and column of a byte, both from one; columns count characters.
    pub(crate) fn position(&self, byte: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        // Continuation bytes of UTF-8 do not start a character.
        let column = 1 + before[start..].iter().filter(|&&b| b & 0xc0 != 0x80).count();
        (line, column)
    }
}

/// Why a document is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError {
    /// Name of the file.
    pub file: String,
    /// Line, from one, if known.
    pub line: Option<usize>,
    /// Column in characters, from one, if known.
    pub column: Option<usize>,
    /// The mistake.
    pub cause: String,
    /// How to correct it.
    pub cure: String,
}

impl DataError {
    /// An error about a file or folder that cannot be read.
    pub fn unreadable(file: impl Into<String>, cause: &io::Error) -> DataError {
        DataError {
            file: file.into(),
            line: None,
            column: None,
            cause: format!("cannot be read: {cause}"),
            cure: "check the path and its permissions".into(),
        }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        write!(f, ": {}; {}", self.cause, self.cure)
    }
}

impl std::error::Error for DataError {}

/// Quotes input for an error message, shortened to one line.
pub(crate) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(40).is_some() {
        short.push_str("...");
    }
    format!("`{short}`")
}

/// Parses `2020-02-29 10:00:00` (UTC) to seconds since 1970; `None` for invalid times.
pub(crate) fn timestamp(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 19 || !text.is_ascii() {
        return None;
    }
    // A parser of a time crate would accept more forms than dir-spec allows.
    let separators = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, separator)| bytes[*at] != *separator) {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = &text[from..to];
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=lengths[month as usize - 1]).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !valid {
        return None;
    }
    let before = year - 1;
    let days = 365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - 477
        + lengths[..month as usize - 1].iter().sum::<u64>()
        + (day - 1);
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// The day (UTC) of seconds since 1970, as `2020-02-29`.
pub fn day(seconds: u64) -> String {
    // Years begin in March, so that leap days end them; 719,468 days separate 0000-03-01 from 1970-01-01.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month_of_year) =
        (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month_of_year <= 2);
    format!("{year:04}-{month_of_year:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_lines_and_characters() {
        let document = Document::new("a.txt", "one\nzwölf x\n").unwrap();
        let error = document.error_at_byte("one\nzwölf ".len(), "an x is here", "remove it");
        assert_eq!(error.to_string(), "a.txt:2:7: an x is here; remove it");
        assert_eq!(document.error_at_byte(usize::MAX, "", "").line, Some(3));
    }

    #[test]
    fn an_empty_document_is_refused() {
        for empty in ["", " \n\t\n"] {
            assert!(Document::new("a.txt", empty).unwrap_err().cause.contains("empty"));
        }
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(timestamp("1970-01-01 00:00:00"), Some(0));
        assert_eq!(timestamp("2020-02-29 10:00:00"), Some(1_582_970_400));
        assert_eq!(timestamp("2038-01-01 00:00:00"), Some(2_145_916_800));
        for date in ["1970-01-01", "2000-02-29", "2019-12-31", "2024-03-01", "2100-02-28", "2100-03-01"] {
            assert_eq!(day(timestamp(&format!("{date} 23:59:59")).unwrap()), date);
        }
        for bad in ["2021-02-29 10:00:00", "2020-13-01 00:00:00", "2020-00-01 00:00:00", "2020-1-01 00:00:00"]
        {
            assert_eq!(timestamp(bad), None, "{bad}");
        }
        for bad in [
            "2020-01-01T00:00:00",
            "2020-01-01 24:00:00",
            "",
            "2020-01-0\u{e4} 00:00:0",
            "+020-01-01 00:00:00",
        ] {
            assert_eq!(timestamp(bad), None, "{bad}");
        }
    }
}
