//! Reader of comma-separated values with a header line.

use csv::{ReaderBuilder, StringRecord};

use crate::document::{DataError, Document, quote};

/// Reads the wanted columns of a table.
///
/// # Errors
/// If a column is missing, or a row and the header differ in length.
pub(crate) fn rows<'a, const N: usize>(
    document: &'a Document,
    wanted: [&'static str; N],
) -> Result<Vec<Row<'a, N>>, DataError> {
    // The parser accepts rows of any length, so that our error names the line.
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(document.text().as_bytes());
    let header = reader.headers().expect("text from memory can be read").clone();
    let number = header.position().map_or(1, |at| at.line() as usize);
    let mut columns = [0; N];
    for (column, name) in columns.iter_mut().zip(wanted) {
        *column = header.iter().position(|field| field == name).ok_or_else(|| {
            let cause = format!("the table lacks the column `{name}`");
            document.error_at(number, cause, format!("give a table with the columns {}", wanted.join(", ")))
        })?;
    }
    let mut rows = Vec::new();
    for record in reader.into_records() {
        let record = record.expect("text from memory can be read");
        let line = record.position().map_or(0, |at| at.line() as usize);
        if record.len() == 1 && record[0].trim().is_empty() {
            continue;
        }
        if record.len() != header.len() {
            let cause = format!("has {} fields, but the header has {}", record.len(), header.len());
            return Err(document.error_at(line, cause, "complete or remove the row"));
        }
        rows.push(Row { document, line, names: wanted, columns, record });
    }
    Ok(rows)
}

/// A row of a table.
pub(crate) struct Row<'a, const N: usize> {
    document: &'a Document,
    pub line: usize,
    names: [&'static str; N],
    columns: [usize; N],
    record: StringRecord,
}

impl<const N: usize> Row<'_, N> {
    /// The wanted columns, in the wanted order.
    pub(crate) fn values(&self) -> [&str; N] {
        self.columns.map(|column| &self.record[column])
    }

    /// Parses a finite number of at least zero.
    pub(crate) fn number(&self, column: usize) -> Result<f64, DataError> {
        let text = self.values()[column];
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
            _ => Err(self.fail(format!(
                "{} {} is not a number of zero or more",
                self.names[column],
                quote(text)
            ))),
        }
    }

    /// An error about this row.
    pub(crate) fn fail(&self, cause: impl Into<String>) -> DataError {
        self.document.error_at(self.line, cause, "correct or remove the row")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<[String; 2]>, String> {
        let document = Document::new("t.csv", text).unwrap();
        let rows = rows(&document, ["b", "a"]).map_err(|error| error.to_string())?;
        Ok(rows.iter().map(|row| row.values().map(str::to_owned)).collect())
    }

    #[test]
    fn fields_may_be_quoted_and_empty() {
        let rows = read("a,b,c\n1,\"x, \"\"y\"\"\nz\",\n\n ,,3\r\n").unwrap();
        assert_eq!(rows, [["x, \"y\"\nz", "1"], ["", " "]]);
    }

    #[test]
    fn errors_name_their_line() {
        assert!(read("a,c\n1,2\n").unwrap_err().starts_with("t.csv:1: the table lacks the column `b`"));
        let long = read("a,b\n\"1\n2\",3\n4,5,6\n").unwrap_err();
        assert!(long.starts_with("t.csv:4: has 3 fields, but the header has 2"), "{long}");
        let open = read("a,b\n1,2\n3,\"4\n5,6\n").unwrap();
        assert_eq!(open[1], ["4\n5,6\n", "3"], "an open quote lasts to the end");
    }
}
