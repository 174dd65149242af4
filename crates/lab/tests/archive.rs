//! The analysis of archives: a small one made up, resumed and broken; and the speed test of August 2019.

use crate::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_lab::archive::{Collected, analyse, drawings, tables, weight_error};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::svg;

/// Stops after so many reports.
struct Patient(AtomicU32);

impl Monitor for Patient {
    fn progress(&self, _work: &str, _state: &str, _done: f64) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    }
    fn stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

fn patient() -> Patient {
    Patient(AtomicU32::new(u32::MAX))
}

fn place(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-archive-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("input")).unwrap();
    folder
}

fn descriptor(digit: &str, hour: u32, bandwidth: u64) -> String {
    format!(
        "@type server-descriptor 1.0\nrouter r{digit} 10.0.0.1 9001 0 0\npublished 2019-08-01 {hour:02}:00:00\n\
        fingerprint {}\nbandwidth {bandwidth} {bandwidth} {bandwidth}\nrouter-signature\n",
        digit.repeat(40)
    )
}

/// Two relays of equal weight with the identities 0x11.. and 0x22.. .
fn consensus(hour: u32) -> String {
    let relay = |name: &str, identity: &str| {
        format!(
            "r {name} {identity} AAAAAAAAAAAAAAAAAAAAAAAAAAA 2019-08-01 00:00:00 10.0.0.1 9001 0\n\
            s Fast Running Valid\nw Bandwidth=1\n"
        )
    };
    format!(
        "network-status-version 3\nvote-status consensus\nconsensus-method 28\n\
        valid-after 2019-08-01 {hour:02}:00:00\nfresh-until 2019-08-01 {:02}:00:00\n\
        valid-until 2019-08-01 {:02}:00:00\nvoting-delay 300 300\nknown-flags Fast Running Valid\n{}{}\
        directory-footer\ndirectory-signature A B\n-----BEGIN SIGNATURE-----\nAAAA\n-----END SIGNATURE-----\n",
        hour + 1,
        hour + 3,
        relay("r1", "ERERERERERERERERERERERERERE"),
        relay("r2", "IiIiIiIiIiIiIiIiIiIiIiIiIiI"),
    )
}

/// Relay 1 advertises 100, later 50; relay 2 always 100.
fn fill(input: &Path) {
    let write = |name: &str, text: String| fs::write(input.join(name), text).unwrap();
    write("descriptors-b", descriptor("1", 3, 50) + &descriptor("2", 0, 100));
    write("descriptors-a", descriptor("1", 0, 100) + &descriptor("2", 0, 100));
    write("consensus-1", consensus(1));
    write("consensus-4", consensus(4));
    write("consensus-again", consensus(1));
    write("descriptors-broken", descriptor("3", 1, 7).replace("bandwidth 7 7 7", "bandwidth 7"));
    write("readme.txt", "nothing of the kind\n".into());
    fs::write(input.join("cut.tar.xz"), [0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4]).unwrap();
}

#[test]
fn a_small_archive_gives_the_errors_computed_by_hand() {
    let folder = place("small");
    fill(&folder.join("input"));
    let mut collected = Collected::open(&folder.join("work")).unwrap();
    assert!(collected.collect(&[folder.join("input")], &patient()).unwrap());
    let counts = collected.counts();
    assert_eq!((counts.descriptors, counts.consensuses, counts.duplicate_consensuses), (4, 2, 1));
    assert_eq!((counts.broken, counts.foreign), (2, 1));
    assert!(collected.problems().iter().any(|problem| problem.contains("descriptors-broken")));
    let analysis = analyse(&collected, &patient()).unwrap().unwrap();
    let [first, second] = analysis.network.as_slice() else { panic!("two hours") };
    assert_eq!((first.relays, first.known, first.advertised_bytes_per_s), (2, 2, 200.0));
    assert_eq!((first.capacity[0], first.weight[0]), (0.0, 0.0));
    // At 4 relay 1 has 50 of the 100 it had within the day.
    assert_eq!((second.capacity[0], second.weight[0]), (0.25, 0.0));
    let summary = tables::summary(&collected, &analysis);
    assert_eq!(summary["relay"]["capacity_error"]["day"]["max"], 0.25);
    assert_eq!(tables::all(&collected, &analysis)[0].rows(), 2);
    let pictures = drawings::all(&analysis);
    assert_eq!(pictures.len(), 7);
    // Half of the relays have no error over a day, the other a quarter on average.
    let (name, drawing) = &pictures[0];
    let day: Vec<_> = drawing.ours[0].points.iter().map(|(x, y, _)| (*x, *y)).collect();
    assert_eq!((*name, day), ("figure-1", vec![(0.0, 0.5), (0.25, 1.0)]));
    assert!(pictures.iter().all(|(_, drawing)| svg(drawing).starts_with("<svg")));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_stopped_run_goes_on_and_gives_the_same() {
    let folder = place("resumed");
    fill(&folder.join("input"));
    let inputs = [folder.join("input")];
    let mut whole = Collected::open(&folder.join("whole")).unwrap();
    whole.collect(&inputs, &patient()).unwrap();
    for steps in 1..9 {
        let work = folder.join(format!("work-{steps}"));
        let mut stopped = Collected::open(&work).unwrap();
        stopped.collect(&inputs, &Patient(AtomicU32::new(steps))).unwrap();
        drop(stopped);
        let mut resumed = Collected::open(&work).unwrap();
        assert!(resumed.collect(&inputs, &patient()).unwrap());
        assert_eq!(resumed.counts(), whole.counts(), "stopped after {steps}");
        let of = |collected: &Collected| {
            tables::summary(collected, &analyse(collected, &patient()).unwrap().unwrap())
        };
        assert_eq!(of(&resumed), of(&whole));
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_folder_of_other_files_is_refused() {
    let folder = place("foreign");
    fs::write(folder.join("input/mine.txt"), "precious").unwrap();
    let error = Collected::open(&folder.join("input")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("other files"), "{error}");
    assert_eq!(fs::read(folder.join("input/mine.txt")).unwrap(), b"precious");
    fs::remove_dir_all(&folder).unwrap();
}

/// `relays/torbwest-pam2021/speedtest.diffs.json.xz`: weights and advertised bandwidths before and after.
#[test]
fn the_speed_test_of_2019_gives_its_published_sums() {
    let root = std::env::var_os("TIDEGATE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let file = root.join("relays/torbwest-pam2021/speedtest.diffs.json.xz");
    if !file.exists() {
        skipped::skipped("the speed test of August 2019", "TIDEGATE_DATA");
        return;
    }
    let document = tidegate_data::open::open(&file).unwrap();
    let relays: serde_json::Map<String, serde_json::Value> = serde_json::from_str(document.text()).unwrap();
    assert_eq!(relays.len(), 7263);
    let column = |kind: &str, when: &str| -> Vec<f64> {
        relays.values().map(|relay| relay[kind][when].as_f64().unwrap_or(0.0)).collect()
    };
    let gigabits = |bytes: &[f64]| bytes.iter().sum::<f64>() * 8e-9;
    let (before, after) = (column("advbw", "before"), column("advbw", "after"));
    assert!((gigabits(&before) - 414.0).abs() < 0.5 && (gigabits(&after) - 606.0).abs() < 0.5);
    let (old, new) = (column("weight", "before"), column("weight", "after"));
    for (weights, capacities, published) in
        [(&old, &before, 0.141), (&old, &after, 0.293), (&new, &after, 0.232)]
    {
        let error = weight_error(weights, capacities);
        assert!((error - published).abs() < 0.0005, "{error} for {published}");
    }
}
