//! Comma-separated values with a header line: the small part of RFC 4180 that measurement tables use.

use crate::document::{DataError, Document, quote};

/// The rows of a table, each as the wanted columns in the wanted order.
///
/// # Errors
/// If a wanted column is missing or a row has too few fields.
pub(crate) fn rows<'a, const N: usize>(
    document: &'a Document,
    wanted: [&'static str; N],
) -> Result<Vec<Row<'a, N>>, DataError> {
    let mut lines = document.lines();
    let (number, header) = lines.next().ok_or_else(|| document.error("has no header", "give a table"))?;
    let header = fields(header);
    let mut columns = [0; N];
    for (column, name) in columns.iter_mut().zip(wanted) {
        *column = header.iter().position(|field| *field == name).ok_or_else(|| {
            let cause = format!("the table has no column `{name}`");
            document.error_at(number, cause, format!("give a table with the columns {}", wanted.join(", ")))
        })?;
    }
    let mut rows = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        let fields = fields(text);
        let mut row = Row { document, line, names: wanted, values: [""; N] };
        for (value, column) in row.values.iter_mut().zip(columns) {
            *value = *fields.get(column).ok_or_else(|| {
                let cause = format!("has {} fields where the header has {}", fields.len(), header.len());
                document.error_at(line, cause, "complete or remove the row")
            })?;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// One row of a table.
pub(crate) struct Row<'a, const N: usize> {
    document: &'a Document,
    pub line: usize,
    names: [&'static str; N],
    pub values: [&'a str; N],
}

impl<const N: usize> Row<'_, N> {
    /// A number in a column that may not be negative or infinite.
    pub fn number(&self, column: usize) -> Result<f64, DataError> {
        let text = self.values[column];
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
    pub fn fail(&self, cause: impl Into<String>) -> DataError {
        self.document.error_at(self.line, cause, "correct or remove the row")
    }
}

/// The fields of a line; a field in double quotes may hold commas.
fn fields(line: &str) -> Vec<&str> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match rest.strip_prefix('"').and_then(|inner| inner.split_once('"')) {
            Some((field, after)) => (field, after.strip_prefix(',')),
            None => match rest.split_once(',') {
                Some((field, after)) => (field, Some(after)),
                None => (rest, None),
            },
        };
        fields.push(field);
        match after {
            Some(after) => rest = after,
            None => return fields,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_be_quoted_and_empty() {
        assert_eq!(fields("a,\"b, c\",,d"), ["a", "b, c", "", "d"]);
        assert_eq!(fields(""), [""]);
        assert_eq!(fields("\"open"), ["\"open"]);
    }
}
