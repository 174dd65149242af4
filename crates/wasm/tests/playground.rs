//! The playground's answers are the tool's, and changes leave the past alone. The page itself: the tool's tests.

use std::path::PathBuf;

use serde_json::Value;
use tidegate_lab::input::SourceFile;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::run_once;
use tidegate_lab::scenario::Scenario;
use tidegate_wasm::answer;

const TEXT: &str = r#"
duration = "4 s"
warmup = "0 s"
sample = "50 ms"
system = [{ name = "vegas", control = "vegas" }]
underlay = { delay = "20 ms" }
relay = [
    { name = "a", link = "10 Mbit/s" },
    { name = "b", link = "4 Mbit/s" },
    { name = "c", link = "10 Mbit/s" },
]
user = [
    { name = "one", traffic = "bulk", path = ["a", "b", "c"] },
    { name = "two", traffic = "bulk", path = ["a", "b", "c"], start = "1 s" },
]
"#;

/// The change at two seconds.
const CHANGE: &str = r#"
[[fault]]
kind = "delay"
between = ["a", "b"]
extra = "100 ms"
from = "2 s"
"#;

struct Nobody;

impl Monitor for Nobody {}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

#[test]
fn answers_are_those_of_the_tool() {
    let source = SourceFile { file: "test".into(), text: TEXT.into() };
    let scenario = Scenario::parse(source, PathBuf::new(), &[]).expect("a scenario");
    let run = run_once(&scenario, 0, 1, &Nobody).expect("it runs").expect("to its end");
    let answer = answer(TEXT);
    assert_eq!(answer["digest"], format!("{:016x}", run.digest));
    for relay in answer["relays"].as_array().expect("relays") {
        assert_eq!(numbers(&relay["queued_bytes"]).len(), 80, "a sample every 50 ms");
    }
    let waits: Vec<f64> = answer["relays"]
        .as_array()
        .expect("relays")
        .iter()
        .map(|relay| numbers(&relay["queued_bytes"]).iter().chain(&numbers(&relay["sending_bytes"])).sum())
        .collect();
    assert!(waits[2] > waits[0], "data wait before the slow relay, not behind it: {waits:?}");
}

#[test]
fn mistakes_are_told() {
    let said = answer("durration = '3 s'")["error"].to_string();
    assert!(said.contains("unknown key `durration`"), "{said}");
}

#[test]
fn a_change_leaves_the_past_as_it_was() {
    let neutral = CHANGE.replace("100 ms", "0 ms");
    let (before, after) = (answer(&format!("{TEXT}{neutral}")), answer(&format!("{TEXT}{CHANGE}")));
    let rates = |answer: &Value, user: usize| numbers(&answer["rates_bytes_per_s"][user]["values"]);
    let step = before["rate_step_s"].as_f64().expect("a step");
    let past = (2.0 / step) as usize;
    for user in 0..2 {
        let (one, other) = (rates(&before, user), rates(&after, user));
        assert_eq!(one[..past], other[..past]);
        assert_ne!(one[past..], other[past..]);
    }
}
