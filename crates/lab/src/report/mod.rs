//! What a user gets to see: the table on the terminal and the folder of results.

pub mod folder;
mod html;
mod parquet;
pub mod scoreboard;
mod table;
pub mod tables;

pub use html::{page, page_of_outcomes};
pub use table::{outcome_table, summary_table};

use serde_json::{Value, json};

use crate::results::{Results, whole_summary};
use crate::scenario::Scenario;
use folder::{Contents, File};
use parquet::parquet;

/// What a scenario's results are of.
pub fn contents(scenario: &Scenario, seeds: u32) -> Contents {
    let mut parameters = serde_json::to_value(&scenario.file).expect("scenarios can be written");
    parameters["seeds"] = json!(seeds);
    Contents { name: scenario.file.name.clone(), parameters }
}

/// Report, tables and JSON of results.
pub fn files(results: &Results<'_>) -> Vec<File> {
    let document = format!("{:#}\n", results.document()).into_bytes();
    let mut files =
        vec![("report.html".to_owned(), page(results).into_bytes()), ("summary.json".to_owned(), document)];
    for table in tables::all(results) {
        files.push((format!("{}.csv", table.name), table.csv().into_bytes()));
        files.push((format!("{}.parquet", table.name), parquet(&table)));
    }
    files
}

/// What the manifest says beside the parameters: everything needed to run the same again.
pub fn provenance(results: &Results<'_>, command: &str) -> Value {
    let runs = results.systems.iter().flat_map(|system| {
        system.runs.iter().map(
            |run| json!({ "system": system.name, "seed": run.seed, "digest": whole_summary(run)["digest"] }),
        )
    });
    json!({
        "command": command,
        "seeds": results.seeds(),
        "runs": runs.collect::<Vec<_>>(),
        "missing": results.runs.missing.len(),
        "scenario": results.scenario.file,
    })
}
