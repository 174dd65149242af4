//! Folders of results and the scoreboard's records: nothing of the user's is lost, nothing is half there.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use rustix::process::Signal;
use serde_json::Value;

use crate::skipped;
use crate::stream::browser::Browser;
use crate::waiting::until_it_handles;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A folder of this test's own, gone at the end; commands run in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-results-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/bottleneck.toml");
        fs::copy(scenario, path.join("small.toml")).unwrap();
        Scratch(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TIDEGATE);
        command.args(arguments).current_dir(&self.0);
        if arguments[0] == "run" {
            command.args(["--set", "warmup = '0.5 s'", "--set", "duration = '1.5 s'"]);
        }
        command
    }

    fn tidegate(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn code(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.tidegate(arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every file that the manifest lists is there.
fn is_whole(place: &Path) -> bool {
    let Ok(bytes) = fs::read(place.join("manifest.json")) else { return false };
    let manifest: Value = serde_json::from_slice(&bytes).unwrap();
    let files = manifest["files"].as_array().unwrap();
    files.len() > 5 && files.iter().all(|file| place.join(file.as_str().unwrap()).exists())
}

#[test]
fn a_second_run_deletes_nothing() {
    let scratch = Scratch::new("second");
    for number in ["1", "2"] {
        let (code, said) = scratch.code(&["run", "small.toml"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(is_whole(&scratch.0.join("out/small").join(number)));
    }
    assert_eq!(fs::read_link(scratch.0.join("out/small/latest")).unwrap(), Path::new("2"));

    let place = scratch.0.join("mine");
    assert_eq!(scratch.code(&["run", "small.toml", "--out", "mine"]).0, Some(0));
    fs::write(place.join("thesis.tex"), "precious").unwrap();
    let before = fs::read(place.join("manifest.json")).unwrap();
    let longer = ["run", "small.toml", "--out", "mine", "--set", "sample = '50 ms'"];
    let (code, said) = scratch.code(&longer);
    assert_eq!(code, Some(2));
    assert!(said.contains("`small` with other parameters: `scenario.sample` is"), "{said}");
    fs::copy(scratch.0.join("small.toml"), scratch.0.join("other.toml")).unwrap();
    let (code, said) = scratch.code(&["run", "other.toml", "--out", "mine"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("of `small`, and these are of `other`"), "{said}");
    assert_eq!(fs::read(place.join("manifest.json")).unwrap(), before, "refused before anything changed");
    assert_eq!(scratch.code(&[&longer[..], &["--force"]].concat()).0, Some(0));
    assert_ne!(fs::read(place.join("manifest.json")).unwrap(), before);
    assert_eq!(fs::read_to_string(place.join("thesis.tex")).unwrap(), "precious");

    // More seeds extend a study. With --force only those of this command count.
    let seeds = |more: &[&str]| {
        let output = scratch.tidegate(&[&["run", "small.toml", "--out", "pooled", "--json"], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["seeds"].clone()
    };
    assert_eq!(seeds(&["--seed", "7", "--seeds", "2"]), serde_json::json!([7, 8]));
    assert_eq!(seeds(&["--seed", "9"]), serde_json::json!([7, 8, 9]));
    assert_eq!(seeds(&["--seed", "8", "--force"]), serde_json::json!([8]));
}

#[test]
fn a_killed_run_leaves_the_old_results_or_the_new() {
    let scratch = Scratch::new("killed");
    assert_eq!(scratch.code(&["run", "small.toml", "--out", "o"]).0, Some(0));
    let place = scratch.0.join("o");
    fs::write(place.join("mine.txt"), "precious").unwrap();
    for wait_ms in (20..=400).step_by(38) {
        let mut run = scratch.command(&["run", "small.toml", "--out", "o"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        let _ = run.kill();
        run.wait().unwrap();
        assert!(is_whole(&place), "killed after {wait_ms} ms");
        assert_eq!(fs::read_to_string(place.join("mine.txt")).unwrap(), "precious");
    }
}

#[test]
fn devices_and_fifos_are_refused() {
    let scratch = Scratch::new("devices");
    let fifo = scratch.0.join("fifo").display().to_string();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for file in ["/dev/zero", "/dev/null", &fifo] {
        for arguments in [&["run", file][..], &["fairness", file], &["predictor", "solve", file]] {
            let (code, said) = scratch.code(arguments);
            assert_eq!(code, Some(2), "{arguments:?}: {said}");
            assert!(said.contains("is not a regular file"), "{arguments:?}: {said}");
        }
        let tor = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/tor.toml");
        let output = Command::new(TIDEGATE).args(["run", tor, "--consensus", file]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is not a regular file"), "{said}");
    }
    assert!(!scratch.0.join("out").exists());
}

/// An experiment with two rows, of which one holds and one differs.
fn experiment(scratch: &Scratch, more: &str) -> PathBuf {
    let folder = scratch.0.join("experiments/paper/figure");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(scratch.0.join("small.toml"), folder.join("small.toml")).unwrap();
    let text = "title = \"t\"\nsource = \"s\"\nrunner = \"scenario\"\nneeds = []\n\
         [parameters]\nseeds = 2\nscenarios = { small = \"small.toml\" }\n\
         overrides = [\"duration = '1.5 s'\", \"warmup = '0.5 s'\"]\n\
         [[row]]\nquantity = \"all\"\nmeasure = \"vanilla.cells_delivered / vanilla.cells_delivered\"\n\
         published = 1\ntolerance = \"1 %\"\n\
         [[row]]\nquantity = \"never\"\nkind = \"own\"\nrelation = \"vanilla.cells_delivered < 1\"\n";
    fs::write(folder.join("experiment.toml"), text.replace("needs = []\n", more)).unwrap();
    folder
}

#[test]
fn results_are_recorded_and_the_page_is_made_of_them() {
    let scratch = Scratch::new("record");
    let folder = experiment(&scratch, "");
    let record = ["reproduce", "paper/figure", "--record", "--strict"];
    let output = scratch.tidegate(&record);
    assert_eq!(output.status.code(), Some(1), "a row differs: {}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said.lines().last().unwrap(),
        "published: 1 hold, 0 differ, 0 undecided, 0 not comparable, 0 without data. \
         own goals: 0 hold, 1 differ, 0 undecided, 0 not comparable, 0 without data"
    );
    assert_eq!(scratch.code(&record[..3]).0, Some(0), "without --strict");
    let result: Value = serde_json::from_slice(&fs::read(folder.join("result.json")).unwrap()).unwrap();
    let mut keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    keys.sort();
    let wanted = ["command", "commit", "cost", "digest", "extra_seeds", "looks", "machine", "rows", "scale"];
    assert_eq!(keys, wanted);
    let row = &result["rows"][0];
    let mut keys: Vec<&String> = row.as_object().unwrap().keys().collect();
    keys.sort();
    let wanted = [
        "deterministic",
        "interval",
        "kind",
        "n",
        "ours",
        "published",
        "quantity",
        "remarks",
        "values",
        "verdict",
    ];
    assert_eq!(keys, wanted);
    assert_eq!((&row["kind"], &row["verdict"], &row["n"]), (&"paper".into(), &"holds".into(), &2.into()));
    assert_eq!((&row["ours"], &row["deterministic"]), (&1.0.into(), &true.into()));
    assert_eq!(result["rows"][1]["verdict"], "differs");

    let page = ["scoreboard", "--page", "page.md"];
    let check = [&page[..], &["--check"]].concat();
    assert_eq!(scratch.tidegate(&check).status.code(), Some(1), "there is no page yet");
    assert_eq!(scratch.code(&page).0, Some(0));
    let text = fs::read_to_string(scratch.0.join("page.md")).unwrap();
    assert!(text.contains("| all | 1 ± 1 % | 1 | 2 | holds | deterministic |"), "{text}");
    assert_eq!(scratch.tidegate(&check).status.code(), Some(0));
    let verify = ["reproduce", "--verify", "1"];
    assert_eq!(scratch.code(&verify).0, Some(0), "the same digest");
    causes_are_shown(&scratch, &folder, &page);
    // The page follows the values, so an edited verdict changes nothing and an edited value does.
    let text = fs::read_to_string(folder.join("result.json")).unwrap();
    fs::write(folder.join("result.json"), text.replacen("holds", "differs", 1)).unwrap();
    assert_eq!(scratch.tidegate(&check).status.code(), Some(0));
    let mut altered = result.clone();
    altered["rows"][0]["values"] = serde_json::json!([2.0, 2.0]);
    altered["digest"] = "0".into();
    fs::write(folder.join("result.json"), altered.to_string()).unwrap();
    let output = scratch.tidegate(&check);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("+ | all | 1 ± 1 % | 1 | 2 | **differs** |"));
    assert_eq!(scratch.code(&verify).0, Some(1), "another digest");
    // A record without values per seed decides nothing.
    altered["rows"][0]["values"] = Value::Null;
    fs::write(folder.join("result.json"), altered.to_string()).unwrap();
    let output = scratch.tidegate(&check);
    assert!(String::from_utf8_lossy(&output.stdout).contains("| undecided |"));
}

/// A row that differs shows the row that demonstrates its cause, which must exist.
fn causes_are_shown(scratch: &Scratch, folder: &Path, page: &[&str]) {
    let experiment = fs::read_to_string(folder.join("experiment.toml")).unwrap();
    let caused = |by: &str| {
        let cause = format!("cause = {{ why = \"too few\", quantity = \"{by}\" }}\n");
        fs::write(folder.join("experiment.toml"), format!("{experiment}{cause}")).unwrap();
        scratch.code(page)
    };
    assert_eq!(caused("all").0, Some(0));
    let text = fs::read_to_string(scratch.0.join("page.md")).unwrap();
    assert!(text.contains("cause: too few (paper/figure: \"all\" holds)"), "{text}");
    // Only rows of papers count as explained; this one is a goal of ours.
    assert!(text.contains("Of 0 rows of papers that differ, 0 have a cause"), "{text}");
    let (code, said) = caused("some");
    assert_eq!(code, Some(2));
    assert!(said.contains("no row of paper/figure has the quantity `some`"), "{said}");
    fs::write(folder.join("experiment.toml"), &experiment).unwrap();
    assert_eq!(scratch.code(page).0, Some(0));
}

#[test]
fn runs_of_an_experiment_are_kept_and_not_made_again() {
    let scratch = Scratch::new("kept");
    experiment(&scratch, "");
    let measure = || {
        let output = scratch.tidegate(&["reproduce", "paper/figure", "--json", "--keep", "kept"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let records = || -> Vec<(PathBuf, SystemTime)> {
        let study =
            fs::read_dir(scratch.0.join("kept/paper/figure/smoke/small/runs")).unwrap().next().unwrap();
        let runs = fs::read_dir(study.unwrap().path()).unwrap().map(|run| run.unwrap().path());
        let mut all: Vec<_> = runs
            .map(|run| (run.clone(), fs::metadata(run.join("record.json")).unwrap().modified().unwrap()))
            .collect();
        all.sort();
        all
    };
    let first = measure();
    let before = records();
    assert!(before.len() >= 2, "a run per system and seed");
    // As if the process had died before its last run ended.
    fs::remove_dir_all(&before[0].0).unwrap();
    assert_eq!(measure(), first);
    let after = records();
    assert_eq!(before[1..], after[1..], "what was kept was not made again");
    assert_eq!(before[0].0, after[0].0);
    // Another experiment's runs are not these.
    let text = scratch.0.join("experiments/paper/figure/experiment.toml");
    let with = |from, to| {
        fs::write(&text, fs::read_to_string(&text).unwrap().replace(from, to)).unwrap();
        let (code, said) = scratch.code(&["reproduce", "paper/figure", "--keep", "kept"]);
        assert_eq!(code, Some(2), "{said}");
        said
    };
    let said = with("'1.5 s'", "'2 s'");
    assert!(said.contains("with other parameters") && said.contains("--keep"), "{said}");
    let said = with("runner = \"scenario\"", "runner = \"command\"");
    assert!(said.contains("none of these experiments keeps runs"), "{said}");
}

#[test]
fn a_missing_input_is_no_data_and_says_which() {
    let scratch = Scratch::new("input");
    experiment(&scratch, "needs = [\"perf/nowhere\"]\n");
    let output = scratch.tidegate(&["reproduce", "--json", "--strict"]);
    assert_eq!(output.status.code(), Some(0), "nothing differs");
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows[0]["verdict"], "no data");
    assert!(rows[0]["remarks"].as_str().unwrap().contains("perf/nowhere"));
    let (code, said) = scratch.code(&["reproduce", "--scale", "huge"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("smoke, medium, full"), "{said}");
    let (code, said) = scratch.code(&["reproduce", "--experiments", "nowhere"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("nowhere: cannot be listed"), "{said}");
    assert!(said.contains("source tree") && said.contains("--experiments FOLDER"), "{said}");
}

/// The digests of a finished run, by system.
fn digests(output: &Output) -> Value {
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let systems = document["systems"].as_object().unwrap();
    systems.iter().map(|(name, system)| (name.clone(), system["digest"].clone())).collect()
}

#[test]
fn a_killed_study_goes_on_where_it_was() {
    let scratch = Scratch::new("resume");
    let wanted = ["run", "small.toml", "--seeds", "4", "--jobs", "1", "--json", "--out"];
    let whole = digests(&scratch.tidegate(&[&wanted[..], &["whole"]].concat()));
    let records = scratch.0.join("killed/runs");
    let kept = || -> usize {
        let studies = fs::read_dir(&records).into_iter().flatten().flatten();
        let runs = studies.flat_map(|study| fs::read_dir(study.path()).into_iter().flatten().flatten());
        runs.filter(|run| !run.file_name().to_string_lossy().starts_with('.')).count()
    };
    // Asked to end, as Slurm and systemd do: what is finished is summed up.
    for signal in ["-TERM", "-KILL", "-KILL"] {
        let before = kept();
        let mut command =
            scratch.command(&[&wanted[..], &["killed", "--resume"][..usize::from(before > 0) + 1]].concat());
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while kept() < before + 2 && run.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = Command::new("kill").args([signal, &run.id().to_string()]).status();
        let status = run.wait().unwrap();
        assert!(kept() >= (before + 2).min(12), "{signal} lost a finished run");
        if signal == "-TERM" && kept() < 12 {
            assert_eq!(status.code(), Some(130));
            assert!(is_whole(&scratch.0.join("killed")));
        }
    }
    let output = scratch.tidegate(&[&wanted[..], &["killed", "--resume"]].concat());
    assert_eq!(digests(&output), whole, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(kept(), 12);
    let (code, said) = scratch.code(&["run", "small.toml", "--out", "nowhere", "--resume"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("does not contain a study to continue") && !scratch.0.join("nowhere").exists(),
        "{said}"
    );
}

#[test]
fn a_full_disk_costs_the_run_under_way_alone() {
    let scratch = Scratch::new("full");
    // For a writer, a limit on the size of files is like a full disk.
    let within = |kib: u32| {
        let shell = format!(
            "ulimit -f {kib}; trap '' XFSZ; exec {TIDEGATE} run small.toml --out o --set \"duration = '1.5 s'\" --set \"warmup = '0.5 s'\""
        );
        let output = Command::new("bash").args(["-c", &shell]).current_dir(&scratch.0).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("File too large"), "{said}");
    };
    // No record of a run fits.
    within(8);
    let left: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["small.toml"], "nothing half-written");
    // All do, and the report of all does not.
    within(100);
    let (code, said) = scratch.code(&["run", "small.toml", "--out", "o", "--resume"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(is_whole(&scratch.0.join("o")));
}

const STUDY: &str = "scenario = 'small.toml'\nseeds = 2\noverrides = [\"duration = '1.5 s'\", \"warmup = '0.5 s'\"]\n\
    [vary]\nsystems = ['vanilla', 'pctcp']\nrelay.btlnk.link = ['2 Mbit/s', '4 Mbit/s']\n";

/// cargo test -p tidegate --test all -- --ignored --nocapture thousand
#[test]
#[ignore = "takes minutes"]
fn a_thousand_points_survive_fifty_kills() {
    let scratch = Scratch::new("thousand");
    let study = "scenario = 'small.toml'\noverrides = [\"duration = '1.5 s'\", \"warmup = '0.5 s'\"]\n[vary]\n\
                 systems = ['vanilla']\nevery-system.windows.circuit = { from = 101, to = 1100, step = 1 }\n";
    fs::write(scratch.0.join("study.toml"), study).unwrap();
    let sweep = ["sweep", "study.toml", "--out", "killed"];
    let kept = || {
        let studies = fs::read_dir(scratch.0.join("killed/runs")).into_iter().flatten().flatten();
        studies.flat_map(|study| fs::read_dir(study.path()).into_iter().flatten()).count()
    };
    let mut at_kills = Vec::new();
    while at_kills.len() < 50 {
        let (before, mut child) = (kept(), scratch.command(&sweep).stderr(Stdio::null()).spawn().unwrap());
        // Each goes on for a few runs, and dies in the midst of others.
        while kept() < before + 10 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(child.try_wait().unwrap().is_none(), "it was at work when it was killed: {at_kills:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        at_kills.push(kept());
    }
    assert!(at_kills.is_sorted(), "what is kept stays: {at_kills:?}");
    let (code, said) = scratch.code(&sweep);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1000 of 1000 runs are stored"), "{said}");
    let text = fs::read_to_string(scratch.0.join("killed/metrics.csv")).unwrap();
    let rows: std::collections::BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains(",throughput_total_bytes_per_s,"))
        .filter_map(|line| line.split(',').next())
        .collect();
    assert_eq!(rows.len(), 1000, "a row for each point");
    println!("kept at the kills: {at_kills:?}");
}

#[test]
fn a_sweep_survives_kills_and_shards_make_one_table() {
    let scratch = Scratch::new("sweep");
    fs::write(scratch.0.join("study.toml"), STUDY).unwrap();
    let rows = |folder: &str| -> Vec<String> {
        let text = fs::read_to_string(scratch.0.join(folder).join("metrics.csv")).unwrap();
        assert!(text.starts_with("relay.btlnk.link,systems,system,seed,metric,value\n"), "{text}");
        let kept = text.lines().filter(|line| line.contains(",throughput_total_bytes_per_s,"));
        kept.map(str::to_owned).collect()
    };
    for wait_ms in [30, 90, 200] {
        let mut sweep = scratch.command(&["sweep", "study.toml", "--out", "killed"]);
        let mut sweep = sweep.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        let _ = sweep.kill();
        sweep.wait().unwrap();
    }
    let (code, said) = scratch.code(&["sweep", "study.toml", "--out", "killed"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("8 of 8 runs are stored"), "{said}");
    assert_eq!(rows("killed").len(), 8);
    // Nothing is left to run; the table is that of the stored runs.
    let again = scratch.tidegate(&["sweep", "study.toml", "--out", "killed"]);
    let table = String::from_utf8_lossy(&again.stdout).into_owned();
    for wanted in ["relay.btlnk.link", "system", " n ", "throughput, ", " 4 Mbit/s ", " pctcp "] {
        assert!(table.contains(wanted), "{wanted}: {table}");
    }
    assert_eq!(table.lines().filter(|line| line.contains(" Mbit/s ") && line.contains(" 2 ")).count(), 4);
    for shard in ["1/3", "3/3", "2/3"] {
        let (code, said) = scratch.code(&["sweep", "study.toml", "--out", "shards", "--shard", shard]);
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(scratch.code(&["runs", "merge", "shards"]).0, Some(0));
    assert_eq!(rows("shards"), rows("killed"), "whatever was killed, and wherever it ran");

    let said = |arguments: &[&str]| String::from_utf8_lossy(&scratch.tidegate(arguments).stdout).into_owned();
    let list = said(&["runs", "ls", "."]);
    assert!(list.contains("./killed") && list.ends_with("2 studies\n"), "{list}");
    assert!(said(&["runs", "show", "shards"]).contains("8 runs,"));
    assert_eq!(said(&["runs", "diff", "killed", "shards", "--metric", "throughput_total"]), "8 | 8 runs\n");
    let other = fs::read_to_string(scratch.0.join("study.toml")).unwrap().replace("4 Mbit/s", "3 Mbit/s");
    fs::write(scratch.0.join("other.toml"), other).unwrap();
    assert_eq!(scratch.code(&["sweep", "other.toml", "--out", "other"]).0, Some(0));
    let differences = said(&["runs", "diff", "killed", "other", "--metric", "throughput_total"]);
    assert!(
        differences.contains("link = 4 Mbit/s, systems = pctcp: only in killed (2 runs)"),
        "{differences}"
    );
    assert!(
        differences.contains("link = 3 Mbit/s, systems = pctcp: only in other (2 runs)"),
        "{differences}"
    );
    assert!(!differences.contains("points."), "{differences}");
    assert!(
        said(&["sweep", "study.toml", "--list"]).contains("p0004  relay.btlnk.link = 4 Mbit/s, systems =")
    );
}

#[test]
fn mistakes_of_a_study_have_a_place_and_a_cure() {
    let scratch = Scratch::new("mistakes");
    let refused = |study: &str, wanted: &str| {
        fs::write(scratch.0.join("study.toml"), study).unwrap();
        let (code, said) = scratch.code(&["sweep", "study.toml", "--out", "o"]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
        assert!(!scratch.0.join("o").exists());
    };
    refused(&STUDY.replace("btlnk", "btlkn"), "there is no [[relay]] with the name `btlkn`");
    refused(&STUDY.replace("btlnk.link", "btlnk.lnik"), "unknown key `lnik`");
    refused(&STUDY.replace("'pctcp'", "'pctpc'"), "did you mean `pctcp`?");
    refused(&STUDY.replace("seeds", "seed"), "study.toml:2:1");
    refused(&STUDY.replace("'2 Mbit/s', '4 Mbit/s'", ""), "has no values");
    for shard in ["0/3", "4/3", "x"] {
        assert_eq!(scratch.code(&["sweep", "study.toml", "--shard", shard]).0, Some(2), "{shard}");
    }
    let set = ["run", "small.toml", "--out", "o", "--set"];
    let (code, said) = scratch.code(&[&set[..], &["relay.btlnk.link = '1 Mbit/s'"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let manifest = fs::read_to_string(scratch.0.join("o/manifest.json")).unwrap();
    assert!(manifest.contains("1 Mbit/s"), "an entry is addressed by its name");
    let (code, said) = scratch.code(&[&set[..], &["relay.btlnk = 3"]].concat());
    assert_eq!(code, Some(2));
    assert!(said.contains("override `relay.btlnk = 3`") && said.contains("KEY = VALUE"), "{said}");
}

#[test]
fn the_first_screen_answers() {
    let scratch = Scratch::new("answer");
    let output = scratch.tidegate(&["run", "small.toml", "--seeds", "2"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("Load: relays use "), "{text}");
    // Nothing in this network is random, so the results lack intervals.
    let flat = text.replace("\n  ", " ");
    assert!(flat.contains("All seeds gave the same runs") && flat.contains("throughput: "), "{text}");
    assert!(flat.contains(" is best with ") && flat.contains("(equal for every seed)."), "{text}");
    // The chart agrees, also after one seed.
    let is_sure = || {
        let page = fs::read_to_string(scratch.0.join("out/small/latest/report.html")).unwrap();
        page.contains("\"sure\":true")
    };
    assert!(is_sure());
    assert!(scratch.tidegate(&["run", "small.toml"]).status.success() && is_sure());
    let drawn = scratch.tidegate(&["run", "small.toml", "--seeds", "2", "--set", "underlay.jitter = '5 ms'"]);
    let said = String::from_utf8_lossy(&drawn.stdout).replace("\n  ", " ");
    assert!(!said.contains("equal for every seed") && said.contains("significant, n = 2)."), "{said}");
    assert!(!is_sure(), "two seeds with jitter");
    let table =
        text.lines().skip_while(|line| !line.starts_with('┌')).take_while(|line| !line.starts_with("--all"));
    assert!((8..=20).contains(&table.count()), "{text}");
    let mut many = fs::read_to_string(scratch.0.join("small.toml")).unwrap();
    (0..6).for_each(|n| many += &format!("[[system]]\nname = \"system-of-number-{n}\"\n"));
    fs::write(scratch.0.join("many.toml"), many).unwrap();
    let many = scratch.tidegate(&["run", "many.toml"]);
    let many = String::from_utf8_lossy(&many.stdout);
    assert!(many.lines().all(|line| line.chars().count() <= 80) && many.contains("--all"), "{many}");
    assert!(many.contains("number-0 ") && !many.contains("number-5"), "those that find room: {many}");
    let all = scratch.tidegate(&["run", "small.toml", "--seeds", "2", "--all"]);
    assert!(String::from_utf8_lossy(&all.stdout).contains("cells per CPU-second"));
    let page = fs::read_to_string(scratch.0.join("out/small/latest/report.html")).unwrap();
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    assert!(at("Which system is better") < at("Rates over time"), "the answer comes first");
}

#[test]
fn a_run_without_deliveries_says_so() {
    let scratch = Scratch::new("silent");
    let late = ["--set", "user.circuit1.start = '1.45 s'", "--set", "user.circuit2.start = '1.45 s'"];
    let late = [&late[..], &["--set", "user.circuit3.start = '1.45 s'"]].concat();
    let output = scratch.tidegate(&[&["run", "small.toml", "--seeds", "2"], &late[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout).replace("\n  ", " ");
    let silent =
        "Nothing is delivered under vanilla, pctcp, predictor after the warm-up. Check the users' `start`";
    assert!(output.status.success() && said.contains(silent), "{said}");
    assert!(!said.contains(": equal"), "{said}");
}

#[test]
fn the_load_counts_token_buckets() {
    let scratch = Scratch::new("bucket");
    let bucket = ["--set", "relay.btlnk.bandwidth = { rate = '1 Mbit/s', burst = '30 KB' }"];
    let run = [&["run", "small.toml"], &bucket[..]].concat();
    let load = |arguments: &[&str]| {
        let output = scratch.tidegate(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (line, _) = said.split_once("under").unwrap_or_else(|| panic!("{said}"));
        let (_, busiest) = said.split_once("busiest ").unwrap();
        (line.replace('\n', " "), busiest.split(' ').next().unwrap().parse::<f64>().unwrap())
    };
    let (line, busiest) = load(&run);
    assert!(line.contains("their capacity (links or token buckets)"), "{line}");
    assert!((80.0..=100.0).contains(&busiest), "the bucket is the bottleneck: {busiest} %");
    let (line, _) = load(&["run", "small.toml"]);
    assert!(line.ends_with("of their links "), "{line}");
}

#[test]
fn a_zero_of_one_seed_leaves_no_ratio() {
    let scratch = Scratch::new("zero");
    let text = "duration = \"30 s\"\nwarmup = \"10 s\"\nunderlay = { delay = \"30 ms\" }\n\
        system = [{ name = \"vanilla\" }, { name = \"kist\", channel-scheduler = \"kist\", control = \"vegas\" }]\n\
        relay = [{ name = \"a\", link = \"20 Mbit/s\" }, { name = \"b\", link = \"5 Mbit/s\" }, { name = \"c\", link = \"20 Mbit/s\" }]\n\
        user = [{ name = \"web\", count = 5, path = [\"a\", \"b\", \"c\"], traffic = \"web\" }]\n";
    fs::write(scratch.0.join("web.toml"), text).unwrap();
    // Not through `Scratch`, which shortens runs to a second.
    let run = ["run", "web.toml", "--seeds", "5"];
    let output = Command::new(TIDEGATE).args(run).current_dir(&scratch.0).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace("\n  ", " ");
    // Under vanilla, no download of two of the seeds ends after the warm-up.
    assert!(said.contains("kB/s: no ratio, because vanilla has 0 for a seed."), "{said}");
    assert!(!said.contains("equal within"), "{said}");
}

#[test]
fn sentences_and_table_state_the_same_ratio() {
    let scratch = Scratch::new("direction");
    let systems =
        ["{ name = \"vanilla\" }", "{ name = \"kist\", channel-scheduler = \"kist\", control = \"vegas\" }"];
    let rest = "duration = \"60 s\"\nwarmup = \"10 s\"\nunderlay = { delay = \"30 ms\" }\n\
        relay = [{ name = \"a\", link = \"20 Mbit/s\" }, { name = \"b\", link = \"5 Mbit/s\" }, { name = \"c\", link = \"20 Mbit/s\" }]\n\
        user = [{ name = \"web\", count = 20, path = [\"a\", \"b\", \"c\"], traffic = \"web\" },\n\
        { name = \"bulk\", count = 3, path = [\"a\", \"b\", \"c\"], traffic = \"bulk\" }]\n";
    for [first, second] in [[0, 1], [1, 0]] {
        let text = format!("system = [{}, {}]\n{rest}", systems[first], systems[second]);
        fs::write(scratch.0.join("web.toml"), text).unwrap();
        let run = ["run", "web.toml", "--seeds", "3"];
        let output = Command::new(TIDEGATE).args(run).current_dir(&scratch.0).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).replace("\n  ", " ");
        let row = said.lines().find(|line| line.starts_with("│ web: first byte")).unwrap();
        let cell = row.trim_end_matches('│').rsplit('┆').next().unwrap();
        let in_table: f64 = cell.split_whitespace().next().unwrap().parse().unwrap();
        let line = said.lines().find(|line| line.starts_with("web: first byte")).unwrap();
        let base = ["vanilla", "kist"][first];
        let (before, _) = line.split_once(&format!(" times {base}'s (")).unwrap_or_else(|| panic!("{line}"));
        let in_words: f64 = before.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((in_words - in_table).abs() <= 0.005, "{said}");
        assert!(line.contains("kist is best with "), "{line}");
    }
}

/// Ticks of the axis of ratios do not overlap, and only tables scroll sideways.
#[test]
fn a_report_fits_a_desktop_and_a_phone() {
    let scratch = Scratch::new("phone");
    assert!(scratch.tidegate(&["run", "small.toml"]).status.success());
    let url = format!("file://{}", scratch.0.join("out/small/latest/report.html").display());
    let Some(mut browser) = Browser::open(&url, &scratch.0.join("profile")) else {
        return skipped::skipped("a report fits a desktop and a phone", "chromium");
    };
    browser.until_above("+document.documentElement.dataset.drawn", 0.0);
    let overlaps = "[...document.querySelectorAll('.ticks .axis')].flatMap((axis) => {
        const boxes = [...axis.children].map((tick) => tick.getBoundingClientRect());
        return boxes.filter((box, n) => n > 0 && box.width > 0 && box.left < boxes[n - 1].right);
    }).length";
    for (width, name) in [(1280, "report.png"), (400, "report-phone.png")] {
        browser.resize(width, name);
        // The page places its ticks when the event of the new size arrives, which a busy machine delays.
        browser.until_above(&format!("+({overlaps} === 0)"), 0.0);
        let sideways = browser.read("document.documentElement.scrollWidth - innerWidth");
        assert!(sideways.as_i64() <= Some(0), "the page is {sideways} px too wide at {width} px");
        let ticks = browser.read("document.querySelectorAll('.ticks .axis span').length");
        assert!(ticks.as_u64() > Some(1), "{ticks} ticks");
    }
}

#[test]
fn an_archive_holds_every_input_and_the_digests_of_data() {
    let scratch = Scratch::new("archive");
    let folder = experiment(&scratch, "needs = [\"measured\", \"gone.csv\"]\n");
    // Scenarios of other papers, and a file that only such a scenario names.
    let other = scratch.0.join("experiments/other");
    fs::create_dir_all(other.join("figure")).unwrap();
    fs::write(
        other.join("figure/net.toml"),
        "latency = 'map.gml'\nx = '/etc/passwd'\ny = '../../../small.toml'\n",
    )
    .unwrap();
    fs::write(other.join("figure/map.gml"), "graph []\n").unwrap();
    let file = folder.join("experiment.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replacen("[[row]]", "[full]\nscenarios = { net = \"../../other/figure/net.toml\" }\n[[row]]", 1),
    )
    .unwrap();
    fs::create_dir_all(scratch.0.join("data/measured/deep")).unwrap();
    fs::write(scratch.0.join("data/measured/deep/a b.csv"), "1\n").unwrap();
    let mut command = scratch.command(&["reproduce", "paper", "--artifact", "a b.tar.gz"]);
    let output = command.env("TIDEGATE_DATA", "data").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(Command::new("tar").args(["xzf", "a b.tar.gz"]).current_dir(&scratch.0));
    let artifact = scratch.0.join("artifact");
    std::os::unix::fs::symlink(scratch.0.join("data"), artifact.join("data")).unwrap();
    let checked = run(Command::new("sha256sum").args(["--check", "inputs.sha256"]).current_dir(&artifact));
    let wanted = "data/measured/deep/a b.csv: OK\nexperiments/other/figure/map.gml: OK\n\
         experiments/other/figure/net.toml: OK\nexperiments/paper/figure/experiment.toml: OK\n\
         experiments/paper/figure/small.toml: OK\n";
    assert_eq!(checked, wanted);
    let digests = fs::read_to_string(artifact.join("inputs.sha256")).unwrap();
    assert!(digests.contains("# absent: data/gone.csv\n"), "{digests}");
    let readme = fs::read_to_string(artifact.join("README.md")).unwrap();
    assert!(readme.contains("--artifact 'a b.tar.gz'`"), "{readme}");
    let report = fs::read_to_string(artifact.join("results/report.html")).unwrap();
    assert!(report.contains(r#""title":"paper/figure""#), "an experiment has its own table");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_the_run() {
    use std::os::unix::ffi::OsStrExt as _;
    let scratch = Scratch::new("places");
    experiment(&scratch, "");
    fs::write(scratch.0.join("file"), "").unwrap();
    let reproduce = ["reproduce", "paper/figure"];
    for place in
        [["--artifact", "no/x.tar.gz"], ["--artifact", "small.toml"], ["--out", "/proc/x"], ["--out", "file"]]
    {
        let (code, said) = scratch.code(&[&reproduce[..], &place].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(place[1]) && said.contains("help: choose another"), "{said}");
        assert!(!said.contains("CPU-s"), "nothing has run: {said}");
    }
    assert!(
        scratch
            .code(&[&reproduce[..], &["--verify", "1", "--artifact", "x"]].concat())
            .1
            .contains("cannot be used")
    );
    for budget in ["nan", "-1", "0", "inf"] {
        let (code, said) = scratch.code(&[&reproduce[..], &["--budget", budget]].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("a number of seconds above 0"), "{said}");
    }
    // Names need not be UTF-8.
    let mut command = scratch.command(&["run", "small.toml"]);
    let output = command.arg("--out").arg(std::ffi::OsStr::from_bytes(b"b\xffd")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A file `out` is in the way of the numbered folders.
    fs::write(scratch.0.join("out"), "").unwrap();
    let (code, said) = scratch.code(&reproduce);
    assert!(code == Some(2) && said.contains("out/reproduce") && !said.contains("CPU-s"), "{said}");
}

#[test]
fn what_was_measured_before_a_mistake_is_written() {
    let scratch = Scratch::new("mistake");
    let folder = experiment(&scratch, "");
    let second = scratch.0.join("experiments/paper/later");
    fs::create_dir_all(&second).unwrap();
    fs::copy(folder.join("experiment.toml"), second.join("experiment.toml")).unwrap();
    let (code, said) = scratch.code(&["reproduce", "--out", "out", "--artifact", "a.tar.gz"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("experiments/paper/later/small.toml: cannot be read"), "{said}");
    let rows: Value =
        serde_json::from_slice(&fs::read(scratch.0.join("out/scoreboard.json")).unwrap()).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    assert!(!scratch.0.join("a.tar.gz").exists(), "an archive is complete");
}

#[test]
fn a_stopped_run_leaves_the_name_of_its_archive_free() {
    let scratch = Scratch::new("stopped");
    let folder = experiment(&scratch, "");
    let file = folder.join("experiment.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("duration = '1.5 s'", "duration = '100000 s'")).unwrap();
    let mut command = scratch.command(&["reproduce", "--artifact", "a.tar.gz"]);
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It does so shortly before the first run, which would take hours.
    until_it_handles(run.id(), Signal::INT);
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("no archive was written, because the run was stopped"), "{said}");
    assert!(!scratch.0.join("a.tar.gz").exists());
}

#[test]
fn a_stopped_look_keeps_the_looks_before_it() {
    let scratch = Scratch::new("stopped-look");
    let folder = experiment(&scratch, "");
    let file = folder.join("experiment.toml");
    let text = fs::read_to_string(&file).unwrap();
    // With lost packets the seeds differ, and so small a share of the budget decides nothing.
    let text = text.replace("delivered / vanilla.cells_delivered", "delivered");
    fs::write(&file, text.replace("'1.5 s'", "'3 s'\", \"underlay.loss = 0.02")).unwrap();
    let mut command = scratch.command(&["reproduce", "--budget", "100000", "--record"]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("seeds so far: 2;")), "a second look begins");
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    let said: String = lines.collect();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("stopped: the rows are those of the finished looks, n = "), "{said}");
    let result: Value = serde_json::from_slice(&fs::read(folder.join("result.json")).unwrap()).unwrap();
    assert!(result["rows"][0]["values"].as_array().unwrap().len() >= 2, "{result}");
}

#[test]
fn seeds_that_tables_cannot_hold_are_refused() {
    let scratch = Scratch::new("seeds");
    let last = format!("seed={}", i64::MAX);
    let (code, said) = scratch.code(&["run", "small.toml", "--set", &last, "--seeds", "2", "--out", "out"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("small.toml: `seed` leads to the seed 9223372036854775808"), "{said}");
    assert_eq!(scratch.code(&["run", "small.toml", "--set", &last, "--out", "out"]).0, Some(0));
    let text = fs::read_to_string(scratch.0.join("out/relays.csv")).unwrap();
    assert!(text.lines().nth(1).unwrap().contains(&i64::MAX.to_string()), "{text}");
}
