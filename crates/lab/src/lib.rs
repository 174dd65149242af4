//! From a scenario file to checked runs, metrics, tables, figures and reports.
