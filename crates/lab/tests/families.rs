//! Families of microdescriptors, from the file to the paths of a sampled Tor.

use crate::skipped;
use std::path::{Path, PathBuf};

use tidegate_control::random::Seed;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::network;
use tidegate_lab::scenario::Scenario;
use tidegate_sim::plan::paths::{PathSelection, Selector};
use tidegate_sim::plan::{Directory, RelayEntry};

/// The scaled-down Tor with these files.
fn tor(consensus: &Path, microdescriptors: Option<&Path>, fraction: f64) -> Result<Scenario, InputError> {
    let text = include_str!("../../../scenarios/tor.toml").into();
    let mut overrides =
        vec![format!("tor.fraction = {fraction:?}"), format!("tor.consensus = {consensus:?}")];
    overrides.extend(microdescriptors.map(|file| format!("tor.microdescriptors = {file:?}")));
    Scenario::parse(SourceFile { file: "tor.toml".into(), text }, PathBuf::new(), &overrides)
}

fn directory(scenario: &Scenario) -> Directory {
    network::build(scenario, Seed::root(1)).unwrap().plan.directory
}

/// How many of 2000 paths over this directory have two relays that `known` calls relatives.
fn paths_with_relatives(scenario: &Scenario, directory: &Directory, known: &Directory) -> usize {
    // The made-up relays are all of one network.
    let paths = PathSelection { exclude_networks: false, ..scenario.systems[0].paths.clone() };
    let selector = Selector::new(directory, &paths).unwrap();
    let mut random = Seed::root(2).random();
    let related = |path: &[_; 3]| {
        let mut members = known.relays.iter().filter(|relay| path.contains(&relay.id));
        members.any(|relay| relay.relatives.iter().any(|relative| path.contains(relative)))
    };
    (0..2000).map(|_| selector.draw(&mut random, &mut None)).filter(related).count()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/fixtures").join(name)
}

#[test]
fn families_of_a_file_keep_relays_apart() {
    let (consensus, microdescriptors) = (fixture("consensus-microdesc"), fixture("microdescriptors"));
    let with = tor(&consensus, Some(&microdescriptors), 1.0).unwrap();
    let without = tor(&consensus, None, 1.0).unwrap();
    let (related, alone) = (directory(&with), directory(&without));
    let pairs: usize = related.relays.iter().map(|relay| relay.relatives.len()).sum();
    assert_eq!(pairs, 2 * 3, "charlie and delta, delta and india, golf and bravo");
    let stripped = |relay: &RelayEntry| RelayEntry { relatives: Vec::new(), ..relay.clone() };
    assert_eq!(related.relays.iter().map(stripped).collect::<Vec<_>>(), alone.relays, "nothing else changes");
    assert_eq!(paths_with_relatives(&with, &related, &related), 0);
    assert!(paths_with_relatives(&without, &alone, &related) > 0);
    let said = with.inputs.notices.join("\n");
    assert!(said.contains("lacks 7 of 12 relays") && said.contains("1 broken microdescriptors"), "{said}");
    assert!(without.inputs.notices.is_empty(), "{:?}", without.inputs.notices);
    let key = "tor.microdescriptors".to_owned();
    assert!(with.input_files().contains(&(key, microdescriptors)), "its digest goes into the manifest");
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let (consensus, microdescriptors) = (fixture("consensus-microdesc"), fixture("microdescriptors"));
    for (consensus, file, said) in [
        (&fixture("consensus-ns"), &microdescriptors, "lacks all microdescriptors of the consensus"),
        (&consensus, &consensus, "is a network consensus of Tor, and not microdescriptors"),
        (&consensus, &fixture("nowhere"), "cannot be read"),
    ] {
        let error = tor(consensus, Some(file), 1.0).unwrap_err().to_string();
        assert!(error.contains(said) && error.starts_with(&file.display().to_string()), "{error}");
    }
    let text = include_str!("../../../scenarios/tor.toml").into();
    let source = SourceFile { file: "tor.toml".into(), text };
    let alone = [format!("tor.microdescriptors = {microdescriptors:?}")];
    let error = Scenario::parse(source, PathBuf::new(), &alone).unwrap_err().to_string();
    assert!(error.contains("needs the `consensus`"), "{error}");
}

#[test]
fn no_path_of_the_real_network_has_two_relatives() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("TIDEGATE_DATA").map_or_else(beside, PathBuf::from);
    if !data.is_dir() {
        return skipped::skipped("families of the network of March 2017", "TIDEGATE_DATA");
    }
    let packed = ["", ".new"].map(|end| data.join(format!("relays/2017-03-10-microdescs{end}.xz")));
    let joined = std::env::temp_dir().join(format!("tidegate-families-{}.xz", std::process::id()));
    std::fs::write(&joined, packed.map(|file| std::fs::read(file).unwrap()).concat()).unwrap();
    let consensus = data.join("consensus/2017-03-10-10-00-00-consensus-microdesc.xz");
    let with = tor(&consensus, Some(&joined), 0.2);
    std::fs::remove_file(&joined).unwrap();
    let (with, without) = (with.unwrap(), tor(&consensus, None, 0.2).unwrap());
    assert!(with.inputs.notices.is_empty(), "all are there: {:?}", with.inputs.notices);
    let related = directory(&with);
    assert!(related.relays.iter().filter(|relay| !relay.relatives.is_empty()).count() > 50);
    assert_eq!(paths_with_relatives(&with, &related, &related), 0);
    assert!(paths_with_relatives(&without, &directory(&without), &related) > 0);
}
