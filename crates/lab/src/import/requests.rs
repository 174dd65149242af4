//! Fits the requests of a tgen client to what a `[traffic]` table can say.

use tidegate_control::units::Span;
use tidegate_data::tgen_actions::{Actions, Pause};

/// Bytes that a request may send and fetch, and the shortest interval, as the keys `request`, `size` and `every` accept them.
const SENT: u64 = 1 << 20;
const FETCHED: u64 = 1 << 50;
const INTERVAL: Span = Span::from_millis(2);

/// Moves what a scenario refuses to the reasons for which parts of the graph are left out.
pub(super) fn fit(actions: &mut Actions) {
    let Actions { requests, left, pause, .. } = actions;
    requests.retain_mut(|request| {
        let name = &request.name;
        if request.weight == 0.0 {
            left.push(format!("the stream `{name}`: its weight is 0, so that tgen never chooses it"));
            return false;
        }
        if let Some(sent) = request.sent.filter(|sent| *sent > SENT) {
            left.push(format!(
                "the stream `{name}`: it sends {sent} B; a request here sends at most {SENT} B"
            ));
            return false;
        }
        if request.size > FETCHED {
            left.push(format!(
                "the stream `{name}`: it fetches {} B; a request here fetches at most {FETCHED} B (1 PiB)",
                request.size
            ));
            return false;
        }
        if request.sent == Some(0) {
            request.sent = Some(1);
            left.push(format!("the empty request of `{name}`: 1 B stands in"));
        }
        if request.size == 0 {
            request.size = 1;
            left.push(format!("the empty response of `{name}`: 1 B stands in"));
        }
        true
    });
    if let Some(Pause { time: [shortest, _], again: true }) = pause
        && *shortest < INTERVAL
    {
        left.push(format!("the interval of {shortest}: {INTERVAL} stands in"));
        *shortest = INTERVAL;
    }
}

/// A name as a key of TOML: letters, digits, `-` and `_`.
pub(super) fn key(name: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name.chars().map(|c| if is_part(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_data::tgen_actions::Request;

    use super::*;

    #[test]
    fn values_that_a_scenario_refuses_are_left_out_or_replaced() {
        let request = |name: &str, size, sent, weight| Request {
            name: name.into(),
            size,
            sent: Some(sent),
            timeout: None,
            weight,
        };
        let mut actions = Actions {
            requests: vec![
                request("never", 9, 9, 0.0),
                request("upload", 0, 5 << 20, 1.0),
                request("all", FETCHED + 1, 9, 1.0),
                request("small", 0, SENT, 1.0),
                request("silent", 9, 0, 1.0),
            ],
            pause: Some(Pause { time: [Span(5), Span(5)], again: true }),
            ..Actions::default()
        };
        fit(&mut actions);
        let kept: Vec<_> =
            actions.requests.iter().map(|one| (one.name.as_str(), one.size, one.sent)).collect();
        assert_eq!(kept, [("small", 1, Some(SENT)), ("silent", 9, Some(1))]);
        assert_eq!(actions.pause.map(|pause| pause.time[0]), Some(INTERVAL));
        assert_eq!(actions.left.len(), 6, "{:?}", actions.left);
        assert_eq!(key("dot name.x"), "dot-name-x");
    }
}
