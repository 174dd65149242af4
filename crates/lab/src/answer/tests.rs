use tidegate_control::units::Span;

use super::parts::Upgrade;
use super::*;
use crate::report::{answer_page, answer_text};

struct Unwatched;
impl Monitor for Unwatched {}

fn small() -> AnswerSettings {
    AnswerSettings {
        consensus: None,
        relays: 10,
        bandwidth_factor: 0.02,
        utilisation: 0.3,
        duration: Span::from_secs(12),
        seeds: 2,
        seed: 5,
        share: 0.2,
        clients: 40,
        days: 3,
    }
}

#[test]
fn a_small_network_gives_every_part_a_row_and_the_same_one_again() {
    let answer = run(&small(), &Unwatched).unwrap();
    let document = answer.document();
    assert_eq!(document, run(&small(), &Unwatched).unwrap().document());
    let text = answer_text(&answer, 120);
    for part in PARTS {
        let of = &document["parts"][part.name];
        assert_eq!(of["benefits"]["bulk_rate"]["n"], 2, "{}", part.name);
        assert!(of["work"]["packets_per_cell"]["ratio"].as_f64().unwrap() > 0.5, "{}", part.name);
        let streams = &of["anonymity"]["streams_seen"];
        assert_eq!(streams.is_null(), part.paths != Paths::TwoGuards, "{} {streams}", part.name);
        let upgraded = of["deployment"]["share_of_relays"].as_f64().unwrap();
        let expected = match part.upgrade {
            Upgrade::ClientsAndExits => 0.05..0.5,
            Upgrade::Nobody => 0.0..0.001,
            _ => 0.999..1.001,
        };
        assert!(expected.contains(&upgraded), "{} {upgraded}", part.name);
        assert!(text.lines().any(|line| line.starts_with(&format!("│ {}", part.name))), "{text}");
    }
    assert!(document["parts"]["conflux"]["anonymity"]["streams_seen"]["ratio"].as_f64().unwrap() > 1.2);
    assert!(document["parts"]["predictor"]["work"]["solves_per_relay_and_s"].as_f64().unwrap() > 10.0);
    // Two networks cannot decide anything.
    assert!(!text.contains("helped by") && !text.contains("harmed by"), "{text}");
    let missing = answer.parts.iter().filter(|part| part.benefits[1].is_none()).count();
    assert_eq!(text.contains("too few downloads for"), missing > 0, "{text}");
    let page = answer_page(&answer);
    assert!(page.contains("Ratio to vanilla") && page.contains("circuitmux_ewma.c"));
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "the page needs no other file");
}

#[test]
fn a_wrong_adversary_or_network_is_refused_before_the_runs() {
    for (settings, named) in [
        (AnswerSettings { share: 1.5, ..small() }, "the adversary"),
        (AnswerSettings { relays: 2, ..small() }, "tor.relays"),
        (AnswerSettings { duration: Span(1), ..small() }, "--duration"),
        (AnswerSettings { consensus: Some("/no/such/file".into()), ..small() }, "/no/such/file"),
    ] {
        let Err(RunError::Input(error)) = run(&settings, &Unwatched) else { panic!("{settings:?}") };
        assert!(error.to_string().contains(named), "{error}");
    }
}
