//! Tests without a daemon: a series of demos, comparisons, checks, schedules.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::demos::{children, children_of};
use crate::flashflow::{Scratch, TIDEGATE, run, skipped, text};
use crate::waiting::soon;

/// A series of live measurements that was stopped keeps its results and continues.
#[test]
fn a_series_goes_on_where_it_was_stopped() {
    let scratch = Scratch::new("series");
    let folder = scratch.0.join("experiments/ours/series");
    fs::create_dir_all(&folder).unwrap();
    let kept = scratch.file("kept/series.jsonl");
    fs::create_dir(scratch.0.join("kept")).unwrap();
    let row = |measure: &str, value: f64| {
        format!(
            "[[row]]\nquantity = \"{measure}\"\nmeasure = \"{measure}\"\npublished = {value}\ntolerance = \"0.01\"\n"
        )
    };
    let experiment = format!(
        "title = \"t\"\nsource = \"s\"\nrunner = \"flashflow-loopback\"\n[parameters]\nduration = \"5 s\"\n\
         repetitions = 2\nrepetitions-of = {{ b = 1 }}\nsockets = [6]\nkept = \"{kept}\"\n\
         relay = {{ a = \"10 Mbit/s\", b = \"20 Mbit/s\" }}\n{}{}{}{}",
        row("all.runs", 3.0),
        row("a.failed", 1.0),
        row("a.max", 3.0),
        row("limited.runs", 3.0)
    );
    fs::write(folder.join("experiment.toml"), experiment).unwrap();
    let settings = |rate: &str| {
        let rest = "--duration|5 s|--sockets|6|--background|0 Mbit/s|--delay|0 s|--jitter|0 s|--seed|1";
        let all = format!("--rate|{rate}|{rest}");
        all.split('|').map(String::from).collect::<Vec<_>>()
    };
    let line = |rate: &str, verdict: Value| {
        format!("{}\n", serde_json::json!({ "settings": settings(rate), "verdict": verdict }))
    };
    let verdict =
        |estimate: u64| serde_json::json!({ "estimate_bits_per_s": estimate, "truth_bits_per_s": 10 });
    let before = [
        line("10 Mbit/s", verdict(30)),
        line("10 Mbit/s", Value::Null),
        line("99 Mbit/s", verdict(90)),
        "{\"settings\": [\"--ra".into(),
    ];
    fs::write(&kept, before.concat()).unwrap();
    let mut reproduce = Command::new(TIDEGATE);
    reproduce
        .args(["reproduce", "ours/series", "--json", "--experiments", &scratch.file("experiments")])
        .args(["--out", &scratch.file("out")])
        .stdout(Stdio::piped());
    // As a terminal does it, the signal goes to the whole group. The interrupted measurement must not count as
    // failed.
    let mut stopped = reproduce.process_group(0).spawn().unwrap();
    // The last process of the measurement has started. Its result comes after 5 s.
    let measures = |process: &u32| {
        let arguments = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        arguments.split('\0').any(|word| word == "coordinator")
    };
    soon("the measurement", || {
        children(&stopped).into_iter().flat_map(children_of).any(|one| measures(&one))
    });
    let group = format!("-{}", stopped.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    stopped.wait().unwrap();
    let lines = fs::read_to_string(&kept).unwrap();
    assert_eq!(lines.trim_end(), before.concat());
    let output = reproduce.output().unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let rows = rows.as_array().unwrap();
    let agrees = |row: &&Value| row["ours"].as_f64() == row["published"].as_f64();
    assert!(rows.len() == 4 && rows.iter().all(|row| agrees(&row)), "{rows:#?}");
    // One series of live measurements decides nothing.
    assert!(rows.iter().all(|row| row["verdict"] == "undecided" && row["n"] == 1), "{rows:#?}");
    assert!(!Path::new(&kept).exists(), "the series is complete");
    let complete = fs::read_to_string(scratch.0.join("kept/series.complete.jsonl")).unwrap();
    let last: Value = serde_json::from_str(complete.lines().last().unwrap()).unwrap();
    assert_eq!((complete.lines().count(), &last["settings"][1]), (5, &"20 Mbit/s".into()));
    assert!(last["verdict"]["estimate_bits_per_s"].as_u64().unwrap() > 0);
}

#[test]
fn weights_are_compared_with_a_consensus() {
    let scratch = Scratch::new("compare");
    fs::create_dir(&scratch.0).unwrap();
    let file = |name: &str, weights: [u64; 3]| {
        let lines: String = weights
            .iter()
            .enumerate()
            .map(|(n, weight)| format!("node_id=${} bw={weight} nick=r{n}\n", format!("{n:02X}").repeat(20)))
            .collect();
        fs::write(scratch.0.join(name), format!("1600000000\nversion=1.5.0\n=====\n{lines}")).unwrap();
        scratch.file(name)
    };
    let (a, b) = (file("a", [100, 100, 200]), file("b", [300, 100, 0]));
    let output = run(&["compare", &a, &b, "--json"]);
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!(answer["common"], 3);
    assert!((answer["network_weight_error"].as_f64().unwrap() - 0.5).abs() < 1e-9, "{answer}");
    let output = run(&["median", &a, &b, &file("c", [200, 50, 300]), "--json"]);
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let weights: Vec<u64> =
        answer["weights"].as_object().unwrap().values().filter_map(Value::as_u64).collect();
    assert_eq!(weights, [200, 100, 200], "{answer}");
    assert_eq!(run(&["median", &a, &b]).status.code(), Some(2), "authorities need three");
    for (name, content) in [
        ("twice", "1\n=====\nnode_id=$00 bw=1\n"),
        ("number", "1\n=====\nnode_id=$0000000000000000000000000000000000000000 bw=-1\n"),
        ("time", "yesterday\n=====\n"),
    ] {
        fs::write(scratch.0.join(name), content).unwrap();
        assert_eq!(run(&["compare", &a, &scratch.file(name)]).status.code(), Some(2), "{name}");
    }
    let output = run(&["compare", &a, &file("zero", [0, 0, 0])]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("3 relays, 0 of them with a weight above 0"), "{}", text(&output));
    // Weights of the live network in two years, if the data is available.
    let data = std::env::var("TIDEGATE_DATA").unwrap_or_else(|_| "../../../shared/data".into());
    let at = |name: &str| format!("{data}/consensus/{name}-consensus-microdesc.xz");
    let years = ["2024-05-17-17-00-00", "2025-08-08-09-00-00"].map(at);
    if years.iter().all(|path| Path::new(path).exists()) {
        // Microdescriptor consensuses also name relays by identity.
        let output = run(&["compare", &years[0], &years[1], "--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(answer["common"].as_u64().unwrap() > 3000, "{answer}");
        let error = answer["network_weight_error"].as_f64().unwrap();
        assert!((0.05..0.9).contains(&error), "{error}");
    } else {
        skipped::skipped("weights of two consensuses are compared", "TIDEGATE_DATA");
    }
}

#[test]
fn keys_configurations_and_schedules_are_checked() {
    let scratch = Scratch::new("check");
    fs::create_dir(&scratch.0).unwrap();
    let key = scratch.file("c.key");
    assert!(run(&["keygen", &key]).status.success());
    assert!(text(&run(&["keygen", &key])).contains("cannot be written"), "keys are never overwritten");
    let fingerprint = "aa".repeat(32);
    let relays: String = (1..=5)
        .map(|n| {
            format!(
                "[[relay]]\nnickname = \"r{n}\"\nid = \"{}\"\naddress = \"127.0.0.{n}:9001\"\n\
                 fingerprint = \"{fingerprint}\"\nonion-key = \"{fingerprint}\"\n",
                format!("{n:02x}").repeat(20)
            )
        })
        .collect();
    let good = format!(
        "identity = \"c.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nopt-out = [\"{}\"]\n\
         [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{fingerprint}\"\n\
         capacity = \"1 Gbit/s\"\n{relays}",
        "05".repeat(20)
    );
    let config = scratch.file("c.toml");
    fs::write(&config, &good).unwrap();
    assert!(run(&["check-config", "coordinator", &config]).status.success());
    let schedule = run(&["schedule", "--config", &config, "--period", "7", "--json"]);
    let document: Value = serde_json::from_slice(&schedule.stdout).unwrap();
    assert_eq!(document["placements"].as_array().unwrap().len(), 4, "who opted out is not in it");
    assert_eq!(run(&["schedule", "--config", &config, "--period", "7", "--json"]).stdout, schedule.stdout);
    assert!(!scratch.0.join("state").exists(), "a dry run writes nothing");

    fs::write(&config, good.replacen("state =", "stat =", 1)).unwrap();
    let output = run(&["check-config", "coordinator", &config]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("unknown field `stat`") && text(&output).contains("line 2"),
        "{}",
        text(&output)
    );
    fs::write(&config, format!("consensus = \"nowhere\"\n{good}")).unwrap();
    let output = run(&["check-config", "coordinator", &config]);
    assert!(output.status.code() == Some(2) && text(&output).contains("go together"), "{}", text(&output));
    fs::write(&config, format!("consensus = \"nowhere\"\ncertificates = \"nowhere\"\n{good}")).unwrap();
    let output = run(&["schedule", "--config", &config]);
    assert!(output.status.code() == Some(2) && text(&output).contains("cannot be read"), "{}", text(&output));
    let output = run(&["delay", "--delay", "11 s", "--to", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("at most 10 s"), "{}", text(&output));
    for role in ["relay", "measurer", "coordinator"] {
        for bad in ["/nonexistent", "/dev/null", TIDEGATE] {
            assert_eq!(run(&["check-config", role, bad]).status.code(), Some(2), "{role} {bad}");
        }
    }
}

#[test]
fn a_liar_gains_no_more_than_the_bound() {
    let output = run(&[
        "demo",
        "--liar",
        "hold",
        "--rate",
        "10 Mbit/s",
        "--duration",
        "6 s",
        "--sockets",
        "12",
        "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    let estimate = verdict["estimate_bits_per_s"].as_u64().unwrap();
    assert!(estimate <= 14_000_000, "{verdict}");
    let output = run(&["demo", "--liar", "hold", "--rate", "unlimited"]);
    assert!(!output.status.success() && text(&output).contains("--rate"), "{}", text(&output));
}

#[test]
fn a_whole_network_is_scheduled() {
    let scratch = Scratch::new("network");
    fs::create_dir(&scratch.0).unwrap();
    let relays: Vec<String> = (0..40)
        .map(|n| format!("\"{n:040X}\": {{\"advbw\": {{\"before\": 6250000, \"after\": 12500000}}}}"))
        .collect();
    let file = scratch.file("speed.json");
    fs::write(&file, format!("{{{}}}", relays.join(","))).unwrap();
    let hours = scratch.file("hours.json");
    fs::write(&hours, format!("{{\"0.0\": [], \"3600.0\": [\"{:040X}\"]}}", 99)).unwrap();
    let schedule = |more: &[&str]| {
        let output = run(&[&["schedule", "--speed-test", &file, "--json"], more].concat());
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let plain = schedule(&[]);
    // 3 Gbit/s hold ten relays of 100 Mbit/s.
    assert_eq!((&plain["slots"], &plain["relays"]), (&4.into(), &40.into()), "{plain}");
    assert_eq!(plain["random"]["unplaced"], 0, "{plain}");
    assert_eq!(plain["with_guesses_from_before"]["attempts"], 80, "half was guessed: all twice: {plain}");
    assert_eq!(schedule(&["--team", "1 Gbit/s + 2 x 2.5 Gbit/s"])["slots"], 2);
    let more = schedule(&["--coordinators", "3", "--failures", "0.5", "--new-relays", &hours]);
    assert_eq!(more["several"]["shared"]["unplaced"], 0, "{more}");
    assert_eq!(more["new_relays"]["longest_wait_s"], 30, "{more}");
    assert!(more["failures"]["attempts"].as_u64().unwrap() > 45, "{more}");
    for (arguments, says) in [
        (&["--team", "3 x fast"][..], "does not begin with a number"),
        (&["--team", "0 x 1 Gbit/s"], "above zero"),
        (&["--factor", "0"], "between 1 and 1000"),
        (&["--slot", "48 h"], "--every"),
        (&["--consensus", "x"], "cannot be used with"),
    ] {
        let output = run(&[&["schedule", "--speed-test", &file], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output).contains(says), "{arguments:?}: {}", text(&output));
    }
    fs::write(&file, format!("{{\"{:040X}\": {{\"advbw\": {{\"before\": 0, \"after\": 0}}}}}}", 1)).unwrap();
    let output = run(&["schedule", "--speed-test", &file]);
    assert!(output.status.code() == Some(2) && text(&output).contains("no running relay"));
    let output = run(&["schedule", "--consensus", &file]);
    assert!(output.status.code() == Some(2) && text(&output).contains("is a `speedtest.diffs.json`"));
}
