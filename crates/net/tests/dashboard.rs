//! The Grafana dashboard of relays queries metrics that a relay exports, with the functions that their types allow.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate_net::live::fetch;

use crate::a_relay;
use crate::one_hop::on_sockets;

const DASHBOARD: &str = include_str!("../../../packaging/grafana/tidegate-relay.json");
const PREFIX: &str = "tidegate_relay_";

/// Metrics in an expression, each with what is before it.
fn metrics(expression: &str) -> Vec<(&str, &str)> {
    let starts = expression.match_indices(PREFIX).map(|(at, _)| at);
    let metric = |at: usize| {
        let rest = &expression[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        (&expression[..at], &rest[..end])
    };
    starts.map(metric).collect()
}

/// What is wrong with the use of a metric of this type.
fn mistake(before: &str, metric: &str, kind: Option<&str>) -> Option<String> {
    let is_rate = before.ends_with("rate(") || before.ends_with("increase(");
    match (kind, is_rate) {
        (Some("counter"), true) | (Some("gauge"), false) => None,
        (Some(kind), _) => Some(format!("{metric} is a {kind}")),
        (None, _) => Some(format!("no relay exports {metric}")),
    }
}

#[test]
fn every_query_fits_an_exported_metric() {
    on_sockets(async {
        let relay = a_relay::start(|_| {}).await;
        let (_, _, page) = fetch(relay.status, "/metrics", None).await.unwrap();
        let page = String::from_utf8(page).unwrap();
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let exported: BTreeMap<String, String> =
            types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
        assert!(exported.len() > 30, "{exported:?}");

        let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
        assert!(panels.len() > 10 && queries.iter().all(|query| !metrics(query).is_empty()), "{queries:?}");
        let used = queries.iter().flat_map(|query| metrics(query));
        let wrong: Vec<String> = used
            .filter_map(|(before, metric)| mistake(before, metric, exported.get(metric).map(String::as_str)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn wrong_queries_are_found() {
    let query = "rate(tidegate_relay_a_total{x=\"y\"}[5m]) / tidegate_relay_b";
    let found = metrics(query);
    assert_eq!(
        found.iter().map(|(_, metric)| *metric).collect::<Vec<_>>(),
        ["tidegate_relay_a_total", "tidegate_relay_b"]
    );
    assert_eq!(mistake(found[0].0, found[0].1, Some("counter")), None);
    assert_eq!(mistake(found[1].0, found[1].1, Some("gauge")), None);
    assert!(mistake(found[0].0, found[0].1, Some("gauge")).is_some());
    assert!(mistake(found[1].0, found[1].1, Some("counter")).is_some());
    assert!(mistake(found[1].0, found[1].1, None).is_some());
}
