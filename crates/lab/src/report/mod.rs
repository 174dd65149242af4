//! Presentation of results: tables on the terminal, and the folder with report, tables and manifest.

mod answer;
mod distributions;
pub mod effects;
pub mod folder;
mod html;
mod page;
pub(crate) mod parquet;
mod part_answers;
pub(crate) mod places;
mod points;
pub mod scoreboard;
pub mod staged;
mod svg;
mod table;
pub mod tables;
#[cfg(test)]
mod tests;

pub(crate) use html::page;
pub use html::{IllustratedExperiment, page_of_outcomes};
pub use part_answers::{answer_page, answer_text};
pub(crate) use points::points_table;
pub use svg::svg;
pub use table::{COLUMNS, full_table, outcome_table, summary_table};

use serde_json::{Value, json};

use crate::results::{Results, VERSION, whole_summary};
use crate::scenario::Scenario;
use folder::{Contents, ResultFile};
use parquet::parquet;

/// Identity of a scenario's results: every key except `seed`, digests of input files, version and commit.
///
/// Seeds are excluded so that more seeds can extend a study.
pub fn contents(scenario: &Scenario, inputs: Value, commit: &str) -> Contents {
    let mut file = serde_json::to_value(&scenario.file).expect("scenarios can be written");
    file.as_object_mut().expect("a table").remove("seed");
    let parameters = json!({ "scenario": file, "inputs": inputs, "version": VERSION, "commit": commit });
    Contents { name: scenario.file.name.clone(), parameters }
}

/// Report, tables and JSON of results.
pub fn files(results: &Results<'_>) -> Vec<ResultFile> {
    let document = format!("{:#}\n", results.document()).into_bytes();
    let mut files =
        vec![("report.html".to_owned(), page(results).into_bytes()), ("summary.json".to_owned(), document)];
    files.extend(tables::ALL.into_iter().flat_map(|table| table_files(&table(results))));
    files
}

/// A table as CSV and as Parquet.
pub fn table_files(table: &tables::Table) -> [ResultFile; 2] {
    [(format!("{}.csv", table.name), table.csv()), (format!("{}.parquet", table.name), parquet(table))]
}

/// Entries of the manifest besides the parameters, which allow repeating the runs.
pub fn provenance(results: &Results<'_>, command: &str) -> Value {
    let runs = results.systems.iter().flat_map(|system| {
        system.runs.iter().map(|run| {
            json!({
                "system": system.name,
                "seed": run.seed,
                "digest": whole_summary(run)["digest"],
                "cpu_s": run.cpu_s,
                "wall_s": run.wall_s,
            })
        })
    });
    json!({
        "command": command,
        "seeds": results.seeds(),
        "runs": runs.collect::<Vec<_>>(),
        "missing": results.runs.missing.len(),
        "complete": results.runs.missing.is_empty(),
        "scenario": results.scenario.file,
    })
}
