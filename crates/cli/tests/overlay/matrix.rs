//! Combinations of parts on sockets, each under the load of many circuits.

use serde_json::Value;

use super::{documents, tidegate};

/// The combinations of a run. Fails with their faults.
fn combinations(arguments: &[&str]) -> Vec<Value> {
    let all = [&["overlay", "matrix", "--json"], arguments].concat();
    let document = documents(&all).remove(0);
    assert_eq!(document["faulty"], 0, "{document:#}");
    document["combination"].as_array().unwrap().clone()
}

/// The guard of all circuits is the bottleneck, so its output buffers are overfull.
#[test]
fn circuits_move_to_other_connections_and_over_other_relays() {
    let found =
        combinations(&["--only", "vanilla-eager-rr-windows-c", "--circuits", "20", "--bytes", "900 kB"]);
    let names: Vec<&str> = found.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["vanilla-eager-rr-windows-connection", "vanilla-eager-rr-windows-circuit"]);
    for one in &found {
        assert_eq!(one["exact"], 20, "{one:#}");
        assert!(one["moves"].as_u64() > Some(0), "{one:#}");
        // The other end of each move counts it, too.
        assert!(one["counters"]["switched"].as_f64() > Some(0.0), "{one:#}");
    }
}

/// Other combinations each day; `tidegate reproduce live/matrix` runs all of them.
#[test]
fn a_sample_of_combinations_carries_every_byte_under_load() {
    for one in combinations(&["--sample", "2", "--circuits", "40", "--bytes", "900 kB"]) {
        assert_eq!(one["exact"], 40, "{one:#}");
    }
}

#[test]
fn a_choice_without_a_combination_is_refused() {
    for (choice, reason) in [
        (["--only", "nonsense"], "no combination has `nonsense` in its name"),
        (
            ["--only", "pctcp-eager-ewma-windows-stay"],
            "one circuit per connection leaves nothing to schedule",
        ),
        (["--sample", "0"], "0 combinations are no sample"),
    ] {
        let output = tidegate(&[&["overlay", "matrix"][..], &choice].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(reason), "{choice:?}: {said}");
    }
}

#[test]
fn parts_without_effect_are_refused_on_sockets() {
    for (keys, reason) in [
        (
            "transport = \"pctcp\"\nscheduler = \"ewma\"",
            "one circuit per connection leaves nothing to schedule",
        ),
        ("control = \"predictor\"\nswitching = \"circuit\"", "PredicTor keeps output buffers short"),
        ("pctcp = { upgraded = 0.0 }", "`pctcp.upgraded` = 0.0 acts only in simulations"),
        ("tcp = { mss = 1000 }", "`tcp` acts only in simulations"),
        ("paths = { policy = \"uniform\" }", "`paths` acts only in simulations"),
    ] {
        let file = std::env::temp_dir().join(format!("tidegate-refused-{}.toml", std::process::id()));
        std::fs::write(&file, format!("[system]\n{keys}\n")).unwrap();
        let system = file.display().to_string();
        let key = "00".repeat(32);
        let role = ["client", "--directory", "127.0.0.1:1", "--authority", &key, "--system", &system];
        let output = tidegate(&role);
        std::fs::remove_file(&file).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{keys}: {said}");
    }
}
