//! What a user gets to see: the table on the terminal and the folder of results.

pub mod folder;
mod html;
mod parquet;
mod table;
pub mod tables;

pub use html::{manifest_of_outcomes, page, page_of_outcomes};
pub use table::{outcome_table, summary_table};
