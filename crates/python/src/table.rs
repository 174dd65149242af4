//! Tables by columns for pandas, polars and pyarrow without a copy (Arrow's PyCapsule interface).

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array, ArrayRef, Float64Array, Int64Array, LargeStringArray, RecordBatch, RecordBatchIterator,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use tidegate_lab::report::tables::{self, Column};

/// A table by columns. pandas (through pyarrow), polars and pyarrow use it without a copy: `polars.DataFrame(table)`,
/// `pyarrow.table(table)`. `table["name"]` is a column as a list, with None for missing values.
#[pyclass(frozen, module = "tidegate")]
pub struct Table {
    name: &'static str,
    batch: RecordBatch,
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Converts a result table. NaN becomes null.
    pub fn of(table: tables::Table) -> PyResult<Table> {
        let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = table
            .columns
            .into_iter()
            .map(|(name, column)| {
                let (kind, values): (DataType, ArrayRef) = match column {
                    Column::Text(values) => {
                        (DataType::LargeUtf8, Arc::new(LargeStringArray::from_iter_values(values)))
                    }
                    Column::Integer(values) => (DataType::Int64, Arc::new(Int64Array::from(values))),
                    Column::Number(values) if values.iter().any(|value| value.is_nan()) => {
                        let values = values.into_iter().map(|value| (!value.is_nan()).then_some(value));
                        (DataType::Float64, Arc::new(values.collect::<Float64Array>()))
                    }
                    Column::Number(values) => (DataType::Float64, Arc::new(Float64Array::from(values))),
                };
                (Field::new(name, kind, true), values)
            })
            .unzip();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(failed)?;
        Ok(Table { name: table.name, batch })
    }
}

fn failed(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// A column as a list.
fn list<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let any = column.as_any();
    if let Some(values) = any.downcast_ref::<LargeStringArray>() {
        PyList::new(py, values)
    } else if let Some(values) = any.downcast_ref::<Int64Array>() {
        PyList::new(py, values)
    } else if let Some(values) = any.downcast_ref::<Float64Array>() {
        PyList::new(py, values)
    } else {
        unreachable!("columns are of three kinds")
    }
}

#[pymethods]
impl Table {
    /// Names of the columns, with units.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    fn __repr__(&self) -> String {
        format!(
            "<tidegate.Table {}: {} rows of {}>",
            self.name,
            self.batch.num_rows(),
            self.columns().join(", ")
        )
    }

    fn __getitem__<'py>(&self, py: Python<'py>, column: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let wrong =
            |_| PyTypeError::new_err("a table's index is the name of a column; `to_pandas()` has rows");
        let column: String = column.extract().map_err(wrong)?;
        let values = self.batch.column_by_name(&column).ok_or_else(|| {
            PyKeyError::new_err(format!("no column `{column}`; there are {}", self.columns().join(", ")))
        })?;
        list(py, values)
    }

    /// Names of the columns, so that `dict(table)` works.
    fn keys(&self) -> Vec<String> {
        self.columns()
    }

    fn __contains__(&self, column: &Bound<'_, PyAny>) -> bool {
        column.extract().is_ok_and(|name: String| self.batch.column_by_name(&name).is_some())
    }

    /// All columns as lists, by name.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, values) in self.columns().iter().zip(self.batch.columns()) {
            dict.set_item(name, list(py, values)?)?;
        }
        Ok(dict)
    }

    /// Converts to pandas.DataFrame; needs pandas and pyarrow.
    fn to_pandas<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let table = slf.py().import("pyarrow")?.call_method1("table", (slf,))?;
        table.call_method0("to_pandas")
    }

    /// Converts to polars.DataFrame; needs polars.
    fn to_polars<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("polars")?.call_method1("DataFrame", (slf,))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.schema().as_ref()).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The requested schema is ignored, which the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }
}
