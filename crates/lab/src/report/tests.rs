//! Tests of what a report says about the number of values behind its numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{points_table, summary_table};
use crate::input::SourceFile;
use crate::monitor::Monitor;
use crate::results::Results;
use crate::runs::{Run, Runs, run_all};
use crate::scenario::Scenario;
use crate::store::Record;

struct Unwatched;
impl Monitor for Unwatched {}

/// Downloads of this size over three relays, under two systems.
fn scenario(size: &str, link: &str) -> Scenario {
    let text = format!(
        "duration = \"20 s\"\nwarmup = \"1 s\"\nsystem = [{{ name = \"vanilla\" }}, {{ name = \"pctcp\" }}]\n\
         relay = [ {{ name = \"guard\", link = \"50 Mbit/s\" }}, {{ name = \"middle\", link = \"50 Mbit/s\" }}, \
         {{ name = \"exit\", link = \"{link}\" }} ]\n[traffic.get]\npause = \"60 s\"\nrequests = [{{ size = \"{size}\" }}]\n\
         [[user]]\nname = \"user\"\ncount = 3\ntraffic = \"get\"\nstart = \"2 s\"\n\
         path = [\"guard\", \"middle\", \"exit\"]\n"
    );
    let source = SourceFile { file: "x.toml".into(), text };
    Scenario::parse(source, Default::default(), &[]).unwrap()
}

/// The runs of a seed again, as those of other seeds.
fn repeated(runs: &Runs, times: u64) -> Runs {
    let again = (1..=times).flat_map(|seed| runs.finished.iter().map(move |run| Run { seed, ..run.clone() }));
    Runs { finished: again.collect(), missing: Vec::new() }
}

#[test]
fn a_run_that_is_repeated_counts_once() {
    let scenario = scenario("50 KiB", "50 Mbit/s");
    let one = run_all(&scenario, 1, &Unwatched).unwrap();
    let runs = repeated(&one, 10);
    let text = summary_table(&Results::new(&scenario, &runs), 1000);
    assert!(text.contains("3 finished downloads under vanilla are too few to compare"), "{text}");
    let record = |run: &Run| Record::of(&scenario, run, &BTreeMap::new(), "", 0);
    let table = points_table(&runs.finished.iter().map(record).collect::<Vec<_>>());
    assert!(table.contains("(3") && table.contains("downloads)"), "a sweep says so: {table}");
}

#[test]
fn a_mean_over_fewer_seeds_says_over_how_many() {
    let scenario = scenario("50 KiB", "50 Mbit/s");
    let mut runs = repeated(&run_all(&scenario, 1, &Unwatched).unwrap(), 5);
    let key = "ttlb_s.get.p50";
    let lacks = runs.finished.iter_mut().filter(|run| run.system == 1 && run.seed > 2);
    lacks.for_each(|run| {
        let summary = &mut Arc::make_mut(&mut run.metrics).summary;
        summary["ttlb_s"]["get"].as_object_mut().unwrap().remove("p50").unwrap();
    });
    let results = Results::new(&scenario, &runs);
    let text = summary_table(&results, 1000);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("get: download, median").contains("pctcp has 1.051 s (n = 2);"), "{text}");
    let row = line("│ get: download, median");
    assert_eq!(row.matches("(n = 2)").count(), 2, "the value and the ratio: {row}");
    let document = results.document();
    assert_eq!((&document["n_of"]["pctcp"][key], &document["n"]["pctcp"]), (&2.into(), &5.into()));
    assert_eq!(document["n_of"]["vanilla"], serde_json::json!({}));
}
