//! A writer of tables as Parquet files: one row group, required columns, plain encoding, gzip.
//!
//! Flat tables need only this subset of the format (<https://parquet.apache.org/docs/file-format/>). The metadata uses
//! Thrift's compact protocol. ARCHITECTURE.md states why the crate `parquet` is not used.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::tables::{Column, Table};

/// Rows in one page.
const PAGE_ROWS: usize = 1 << 20;

/// Encodes a table as the bytes of a Parquet file.
pub(crate) fn parquet(table: &Table) -> Vec<u8> {
    let mut file = b"PAR1".to_vec();
    let rows = table.rows();
    let mut chunks = Vec::new();
    for (_, column) in &table.columns {
        let (begin, mut saved) = (file.len(), 0);
        let mut row = 0;
        while row < rows || (rows == 0 && file.len() == begin) {
            let end = (row + PAGE_ROWS).min(rows);
            saved += page(&mut file, column, row, end);
            row = end;
        }
        let packed = file.len() - begin;
        chunks.push(Chunk { begin, packed, unpacked: packed.saturating_add_signed(saved) });
    }
    let metadata = metadata(table, &chunks);
    file.extend(&metadata);
    file.extend((metadata.len() as u32).to_le_bytes());
    file.extend(b"PAR1");
    file
}

/// Position and sizes of a column's pages, including their headers.
struct Chunk {
    begin: usize,
    packed: usize,
    unpacked: usize,
}

/// Appends a page, and returns the number of bytes that compression saved.
fn page(file: &mut Vec<u8>, column: &Column, from: usize, to: usize) -> isize {
    let mut data = Vec::new();
    match column {
        Column::Text(values) => {
            for value in &values[from..to] {
                data.extend((value.len() as u32).to_le_bytes());
                data.extend(value.as_bytes());
            }
        }
        Column::Integer(values) => values[from..to].iter().for_each(|value| data.extend(value.to_le_bytes())),
        Column::Number(values) => values[from..to].iter().for_each(|value| data.extend(value.to_le_bytes())),
    }
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed =
        packer.write_all(&data).and_then(|()| packer.finish()).expect("writing to memory cannot fail");
    let mut header = Thrift::default();
    header.i32(1, 0); // data page
    header.i32(2, data.len() as i64);
    header.i32(3, packed.len() as i64);
    header.begin(5);
    header.i32(1, (to - from) as i64);
    header.i32(2, 0); // values: plain
    header.i32(3, 3); // levels: RLE, although required columns have none
    header.i32(4, 3);
    header.end();
    header.end();
    file.extend(header.bytes);
    file.extend(&packed);
    data.len() as isize - packed.len() as isize
}

/// Physical type: INT64, DOUBLE or BYTE_ARRAY.
fn physical(column: &Column) -> i64 {
    match column {
        Column::Integer(_) => 2,
        Column::Number(_) => 5,
        Column::Text(_) => 6,
    }
}

fn metadata(table: &Table, chunks: &[Chunk]) -> Vec<u8> {
    let rows = table.rows() as i64;
    let mut out = Thrift::default();
    out.i32(1, 1);
    out.list(2, STRUCT, table.columns.len() + 1);
    out.open();
    out.text(4, "schema");
    out.i32(5, table.columns.len() as i64);
    out.end();
    for (name, column) in &table.columns {
        out.open();
        out.i32(1, physical(column));
        out.i32(3, 0); // required
        out.text(4, name);
        if let Column::Text(_) = column {
            out.i32(6, 0); // UTF-8
        }
        out.end();
    }
    out.i64(3, rows);
    out.list(4, STRUCT, 1);
    out.open();
    out.list(1, STRUCT, chunks.len());
    for ((name, column), chunk) in table.columns.iter().zip(chunks) {
        out.open();
        out.i64(2, chunk.begin as i64);
        out.begin(3);
        out.i32(1, physical(column));
        out.list(2, I32, 1);
        out.zigzag(0);
        out.list(3, BINARY, 1);
        out.string(name);
        out.i32(4, 2); // gzip
        out.i64(5, rows);
        out.i64(6, chunk.unpacked as i64);
        out.i64(7, chunk.packed as i64);
        out.i64(9, chunk.begin as i64);
        out.end();
        out.end();
    }
    out.i64(2, chunks.iter().map(|chunk| chunk.unpacked as i64).sum());
    out.i64(3, rows);
    out.end();
    out.text(6, concat!("tidegate ", env!("CARGO_PKG_VERSION")));
    out.end();
    out.bytes
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A writer of Thrift's compact protocol.
struct Thrift {
    bytes: Vec<u8>,
    /// The last field number of each open struct.
    last: Vec<i16>,
}

impl Default for Thrift {
    fn default() -> Thrift {
        Thrift { bytes: Vec::new(), last: vec![0] }
    }
}

impl Thrift {
    fn field(&mut self, number: i16, kind: u8) {
        let last = self.last.last_mut().expect("a struct is open");
        let step = number - *last;
        assert!((1..16).contains(&step), "fields are written in order");
        *last = number;
        self.bytes.push((step as u8) << 4 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn zigzag(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    fn i32(&mut self, number: i16, value: i64) {
        self.field(number, I32);
        self.zigzag(value);
    }

    fn i64(&mut self, number: i16, value: i64) {
        self.field(number, I64);
        self.zigzag(value);
    }

    fn string(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn text(&mut self, number: i16, text: &str) {
        self.field(number, BINARY);
        self.string(text);
    }

    fn list(&mut self, number: i16, kind: u8, length: usize) {
        self.field(number, LIST);
        if length < 15 {
            self.bytes.push((length as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            self.varint(length as u64);
        }
    }

    /// Opens a struct as a field.
    fn begin(&mut self, number: i16) {
        self.field(number, STRUCT);
        self.open();
    }

    /// Opens a struct as an element of a list.
    fn open(&mut self) {
        self.last.push(0);
    }

    fn end(&mut self) {
        self.bytes.push(0);
        self.last.pop();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Read back by hand: the values lie where the format wants them. `make columnar` reads a whole
    /// folder with pandas and polars.
    #[test]
    fn the_frame_is_in_place() {
        let table = Table {
            name: "t",
            columns: vec![
                ("name".into(), Column::Text(vec!["a".into(), "µ".into()])),
                ("number".into(), Column::Number(vec![1.5, -2.0])),
            ],
        };
        let file = parquet(&table);
        assert_eq!((&file[..4], &file[file.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
        let length = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as usize;
        let metadata = &file[file.len() - 8 - length..file.len() - 8];
        assert_eq!(metadata[0..2], [0x15, 2], "field 1, i32, version 1");
        // Each column's page is a member of gzip.
        let unpack = |from: usize| {
            let mut data = Vec::new();
            flate2::read::GzDecoder::new(&file[from..]).read_to_end(&mut data).unwrap();
            data
        };
        let magic = [0x1f, 0x8b, 8];
        let pages = (0..file.len() - 3).filter(|at| file[*at..*at + 3] == magic);
        let pages: Vec<Vec<u8>> = pages.map(unpack).collect();
        assert_eq!(pages[0], [1, 0, 0, 0, b'a', 2, 0, 0, 0, 0xc2, 0xb5], "text is length and bytes");
        assert_eq!(pages[1], [1.5f64.to_le_bytes(), (-2.0f64).to_le_bytes()].concat(), "numbers are plain");
        assert_eq!(*metadata.last().unwrap(), 0, "the metadata's struct is closed");
    }

    /// TIDEGATE_PARQUET=FILE cargo test -p tidegate-lab --lib ten_million -- --ignored, and FILE read with pandas.
    #[test]
    #[ignore = "takes a gigabyte"]
    fn ten_million_rows_are_a_file() {
        let rows = 10_000_000;
        let texts = (0..rows).map(|row| format!("relay{}", row * 7919 % 6000)).collect();
        let columns = vec![
            ("relay".into(), Column::Text(texts)),
            ("circuit".into(), Column::Integer((0..rows).collect())),
            ("ttfb_s".into(), Column::Number((0..rows).map(|row| (row % 9973) as f64 / 1000.0).collect())),
        ];
        let file = parquet(&Table { name: "t", columns });
        println!("{} MB for {rows} rows", file.len() / 1_000_000);
        assert!(file.len() < 32 * rows as usize / 2, "packed");
        if let Some(place) = std::env::var_os("TIDEGATE_PARQUET") {
            std::fs::write(place, file).unwrap();
        }
    }

    #[test]
    fn an_empty_table_is_a_file() {
        let table = Table { name: "t", columns: vec![("x".into(), Column::Integer(vec![]))] };
        assert!(parquet(&table).len() > 40);
    }
}
