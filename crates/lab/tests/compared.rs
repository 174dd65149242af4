//! Tests of clients that compare paths before they use one.

use std::path::PathBuf;

use tidegate_lab::input::SourceFile;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::{Run, run_once};
use tidegate_lab::scenario::Scenario;

struct Nobody;

impl Monitor for Nobody {}

/// Relays of which `r0` is busy with others' downloads, and users who renew their circuits every 3 s.
fn scenario(policy: &str, more: &str) -> String {
    let relay = |n: u32| {
        let mbit_per_s = if n == 0 { 2 } else { 50 };
        format!("[[relay]]\nname = \"r{n}\"\nlink = \"{mbit_per_s} Mbit/s\"\nqueue = \"unlimited\"\n")
    };
    let relays: String = (0..6).map(relay).collect();
    format!(
        "duration = \"40 s\"\n[[system]]\nname = \"x\"\npaths.policy = \"{policy}\"\npaths.keep-guard = false\n\
         paths.build-timeout = \"5 s\"\n[underlay]\ndelay = \"20 ms\"\n{relays}\
         [[client]]\nname = \"c\"\nlink = \"100 Mbit/s\"\n[[server]]\nname = \"s\"\nlink = \"100 Mbit/s\"\n\
         [traffic.page]\nrequests = [{{ size = \"20 KiB\", timeout = \"20 s\" }}]\npause = \"500 ms\"\n\
         circuit-lifetime = \"3 s\"\n\
         [[user]]\nname = \"other\"\ncount = 4\ntraffic = \"bulk\"\npath = [\"r1\", \"r0\", \"r2\"]\nclient = \"c\"\n\
         server = \"s\"\n\
         [[user]]\nname = \"u\"\ncount = 8\ntraffic = \"page\"\nclient = \"c\"\nserver = \"s\"\n{more}"
    )
}

fn run(policy: &str, more: &str) -> Run {
    let source = SourceFile { file: "x.toml".into(), text: scenario(policy, more) };
    let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
    run_once(&scenario, 0, 1, &Nobody).unwrap().unwrap()
}

/// Pages after 10 s, and how many of them went over the busy relay.
fn over_busy(run: &Run) -> (usize, usize) {
    let busy = run.metrics.relays.iter().find(|relay| relay.name == "r0").unwrap().host;
    let late = run.metrics.transfers.records.iter().filter(|record| record.begun.as_secs_f64() > 10.0);
    let pages = late.filter(|record| record.bytes == 20 << 10);
    (pages.clone().count(), pages.filter(|record| record.path.contains(&busy)).count())
}

#[test]
fn congested_relays_are_avoided() {
    let [tor, aware] = ["tor", "congestion-aware"].map(|policy| run(policy, ""));
    let [(pages, busy), (aware_pages, aware_busy)] = [over_busy(&tor), over_busy(&aware)];
    assert!(aware_pages > pages, "{aware_pages} pages, {pages} without comparing");
    let share = |busy: usize, pages: usize| busy as f64 / pages as f64;
    assert!(share(busy, pages) > 0.1, "{busy} of {pages}");
    assert!(share(aware_busy, aware_pages) < 0.2 * share(busy, pages), "{aware_busy} of {aware_pages}");
    assert!(aware.metrics.transfers.records.iter().all(|record| !record.timed_out));
}

/// Circuits break while they are compared, at the end of their life, and while streams wait for them.
#[test]
fn users_go_on_when_compared_circuits_break() {
    let late = |policy: &str| {
        let run = run(policy, "[relay-churn]\nup = \"10 s\"\ndown = \"1 s\"\n");
        let all = &run.metrics.transfers.records;
        assert!(all.iter().any(|record| record.timed_out), "some circuits broke");
        let late = all.iter().filter(|record| record.begun.as_secs_f64() > 20.0 && record.last.is_some());
        late.map(|record| record.user).collect::<std::collections::BTreeSet<u32>>().len()
    };
    let [tor, aware] = ["tor", "congestion-aware"].map(late);
    assert!(aware >= 6 && aware >= tor, "{aware} of 8 users still load pages, {tor} without comparing");
}

/// Each request has a circuit of its own, which the client compares during the pause.
#[test]
fn circuits_for_one_request_are_compared() {
    let [tor, aware] = ["tor", "congestion-aware"].map(|policy| {
        let text = scenario(policy, "").replace("lifetime = \"3 s\"", "lifetime = \"0 s\"");
        let source = SourceFile { file: "x.toml".into(), text };
        run_once(&Scenario::parse(source, PathBuf::new(), &[]).unwrap(), 0, 1, &Nobody).unwrap().unwrap()
    });
    let records = &aware.metrics.transfers.records;
    let circuits: std::collections::BTreeSet<u32> = records.iter().map(|record| record.circuit).collect();
    assert!(
        records.len() > 60 && circuits.len() + 20 >= records.len(),
        "{} {}",
        records.len(),
        circuits.len()
    );
    let [(pages, busy), (aware_pages, aware_busy)] = [over_busy(&tor), over_busy(&aware)];
    assert!(2 * aware_busy * pages < busy * aware_pages, "{aware_busy} of {aware_pages}, {busy} of {pages}");
}
