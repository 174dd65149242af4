//! Recipes for clusters in `examples/cluster`: each makes the study that `tidegate sweep` makes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::skipped;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

const STUDY: &str = "scenario = \"small.toml\"\nseeds = 2\noverrides = [\"duration = '1.5 s'\", \"warmup = '0.5 s'\"]\n\
    [vary]\nunderlay.jitter = [\"1 ms\", \"5 ms\"]\nsystems = [\"vanilla\"]\n";

/// A folder with a study, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-recipes-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::copy(root().join("scenarios/bottleneck.toml"), path.join("small.toml")).unwrap();
        fs::write(path.join("study.toml"), STUDY).unwrap();
        Scratch(path)
    }

    /// A command that finds this build's tool, as users find theirs.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let tool = Path::new(TIDEGATE).parent().unwrap().display();
        let mut command = Command::new(program);
        command.current_dir(&self.0);
        command.env("PATH", format!("{tool}:{}", std::env::var("PATH").unwrap_or_default()));
        command
    }

    fn run(&self, command: &mut Command) {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
    }

    /// System, seed, point and digest of every stored run.
    fn runs(&self, folder: &str) -> BTreeSet<String> {
        assert!(self.0.join(folder).join("metrics.csv").exists(), "{folder} is merged");
        let studies = fs::read_dir(self.0.join(folder).join("runs")).unwrap().flatten();
        let runs = studies.flat_map(|study| fs::read_dir(study.path()).unwrap().flatten());
        let records = runs.filter_map(|run| fs::read_to_string(run.path().join("record.json")).ok());
        let known = records.map(|text| {
            let record: Value = serde_json::from_str(&text).unwrap();
            ["system", "seed", "point", "digest"].map(|key| record[key].to_string()).join(" ")
        });
        known.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn parts_on_a_cluster_make_the_study_of_one_sweep() {
    let scratch = Scratch::new("cluster");
    let recipes = root().join("examples/cluster");
    scratch.run(scratch.command(TIDEGATE).args(["sweep", "study.toml", "--out", "whole"]));
    let whole = scratch.runs("whole");
    assert_eq!(whole.len(), 4);
    // Slurm sets these variables; the script is the one that sbatch takes.
    let begin = |task: &str| {
        let mut part = scratch.command(recipes.join("slurm-array.sh"));
        part.args(["study.toml", "slurm", "3"]).stderr(std::process::Stdio::null());
        part.env("SLURM_ARRAY_TASK_ID", task).env("SLURM_CPUS_PER_TASK", "1").spawn().unwrap()
    };
    // All begin at once, as on a cluster.
    for mut part in ["1", "2", "3"].map(begin) {
        assert!(part.wait().unwrap().success());
    }
    scratch.run(scratch.command(TIDEGATE).args(["runs", "merge", "slurm"]));
    assert_eq!(scratch.runs("slurm"), whole);
    if is_installed("parallel") {
        let mut script = scratch.command(recipes.join("parallel.sh"));
        scratch.run(script.args(["study.toml", "gnu", "3", "--jobs", "2", "--will-cite"]));
        assert_eq!(scratch.runs("gnu"), whole);
    } else {
        skipped::skipped("the recipe for GNU parallel", "parallel");
    }
    if is_installed("snakemake") {
        let mut snakemake = scratch.command("snakemake");
        snakemake.args(["--cores", "2", "--quiet", "--snakefile"]).arg(recipes.join("Snakefile"));
        scratch.run(snakemake.args(["--config", "study=study.toml", "folder=snake", "parts=3"]));
        assert_eq!(scratch.runs("snake"), whole);
    } else {
        skipped::skipped("the recipe for Snakemake", "snakemake");
    }
}

#[test]
fn an_artifact_holds_inputs_results_and_pictures() {
    let scratch = Scratch::new("artifact");
    let experiments = root().join("experiments");
    let reproduce = |file: &str, out: &str| {
        let mut command = scratch.command(TIDEGATE);
        command.args(["reproduce", "predictor/figure-3", "--artifact", file, "--out", out, "--experiments"]);
        command.arg(&experiments);
        command
    };
    scratch.run(&mut reproduce("artifact.tar.gz", "one"));
    scratch.run(scratch.command("tar").args(["xzf", "artifact.tar.gz"]));
    let read = |name: &str| fs::read_to_string(scratch.0.join("artifact").join(name)).expect(name);
    let digests = read("inputs.sha256");
    let mut check = scratch.command("sha256sum");
    scratch.run(check.current_dir(scratch.0.join("artifact")).args(["--check", "--quiet", "inputs.sha256"]));
    assert!(digests.contains("experiments/predictor/figure-3/experiment.toml"), "{digests}");
    assert!(read("README.md").contains("predictor/figure-3: "));
    assert!(read("environment.json").contains("\"commit\""));
    assert!(read("results/report.html").contains("</html>"));
    let refused = reproduce("artifact.tar.gz", "two").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("exists already"));
}
