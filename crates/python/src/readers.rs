//! Readers of Tor's files, which return tables.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use tidegate_data::consensus;
use tidegate_data::formats::{CONSENSUSES, DOWNLOADS, Formats};
use tidegate_lab::input::InputError;
use tidegate_lab::report::tables::{Column, Table as Columns};

use crate::errors::input_error;
use crate::table::Table;

fn read<T: Send>(py: Python<'_>, path: &Path, formats: &Formats<T>) -> PyResult<T> {
    py.detach(|| formats.open(path)).map_err(|error| input_error(InputError::from(error)))
}

fn table(name: &'static str, columns: Vec<(&str, Column)>) -> PyResult<Table> {
    let columns = columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect();
    Table::of(Columns { name, columns })
}

/// Reads the relays of a consensus of either flavour, plain, .xz or .gz; weights in kB/s.
#[pyfunction]
pub fn read_consensus(py: Python<'_>, path: PathBuf) -> PyResult<Table> {
    let consensus = read(py, &path, &CONSENSUSES)?;
    let relays = &consensus.relays;
    let text =
        |of: &dyn Fn(&consensus::RouterStatus) -> String| Column::Text(relays.iter().map(of).collect());
    let whole =
        |of: &dyn Fn(&consensus::RouterStatus) -> i64| Column::Integer(relays.iter().map(of).collect());
    table(
        "relays",
        vec![
            ("fingerprint", text(&|relay| relay.identity.to_string())),
            ("nickname", text(&|relay| relay.nickname.clone())),
            ("address", text(&|relay| relay.address.to_string())),
            ("or_port", whole(&|relay| relay.or_port.into())),
            ("flags", text(&|relay| relay.flags.names().collect::<Vec<_>>().join(" "))),
            ("version", text(&|relay| relay.version.clone().unwrap_or_default())),
            ("weight_kb_per_s", whole(&|relay| relay.bandwidth.into())),
            ("unmeasured", whole(&|relay| relay.unmeasured.into())),
        ],
    )
}

/// Reads downloads measured by torperf or OnionPerf, one row each: `quantity` is ttfb, ttlb, circuit_build or round_trip,
/// in s; `size_bytes` is 0 for the last two.
#[pyfunction]
pub fn read_torperf(py: Python<'_>, path: PathBuf) -> PyResult<Table> {
    let measured = read(py, &path, &DOWNLOADS)?;
    let (mut sizes, mut quantities, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |bytes: u64, quantity: &str, seconds: &[f64]| {
        sizes.extend(seconds.iter().map(|_| bytes.cast_signed()));
        quantities.extend(seconds.iter().map(|_| quantity.to_owned()));
        values.extend(seconds);
    };
    for download in &measured.downloads {
        add(download.bytes, "ttfb", &download.ttfb_s);
        add(download.bytes, "ttlb", &download.ttlb_s);
    }
    add(0, "circuit_build", &measured.circuit_build_s);
    add(0, "round_trip", &measured.round_trip_s);
    table(
        "measured",
        vec![
            ("size_bytes", Column::Integer(sizes)),
            ("quantity", Column::Text(quantities)),
            ("seconds", Column::Number(values)),
        ],
    )
}
