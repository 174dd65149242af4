//! Whether runs with other seeds can differ.

use super::Scenario;
use super::file::SystemFile;
use super::users::{TrafficFile, UserFile};

impl Scenario {
    /// Whether a part of the scenario is drawn from the seed. A part that is not known to be fixed counts as drawn.
    pub(crate) fn is_drawn(&self) -> bool {
        let file = &self.file;
        let network = file.tor.is_some() || file.random.is_some() || file.relay_churn.is_some();
        let underlay = &file.underlay;
        let varies = underlay.file.is_some()
            || underlay.jitter.0 > 0
            || underlay.loss > 0.0
            || underlay.fuzziness > 0.0
            || file.fault.iter().any(|fault| fault.probability.is_some());
        network
            || varies
            || file.user.iter().any(|user| self.is_user_drawn(user))
            || file.system.iter().any(|system| is_system_drawn(system))
    }

    fn is_user_drawn(&self, user: &UserFile) -> bool {
        let traffic = self.file.traffic_of(user.traffic.as_str());
        user.path.is_none()
            || user.start.low != user.start.high
            || !user.awake.is_empty()
            || traffic.is_none_or(|traffic| is_traffic_drawn(&traffic))
    }
}

fn is_traffic_drawn(traffic: &TrafficFile) -> bool {
    traffic.requests.len() != 1
        || traffic.pause.low != traffic.pause.high
        || traffic.every.is_some()
        || traffic.stream_model.is_some()
}

fn is_system_drawn(system: &SystemFile) -> bool {
    let table = &system.parts.table;
    let is = |path: [&str; 2], fixed: &str| {
        table
            .get(path[0])
            .and_then(|part| part.get(path[1]))
            .is_none_or(|value| value.as_str() == Some(fixed))
    };
    let number = |path: [&str; 2], fixed: f64| {
        let value = table.get(path[0]).and_then(|part| part.get(path[1]));
        value.is_none_or(|value| value.as_f64() == Some(fixed))
    };
    system.old_clients > 0.0
        || system.other_clients.is_some()
        || system.parts.conflux.is_some()
        || table.get("balance").is_none_or(|balance| balance.as_str() != Some("given"))
        || !number(["pctcp", "upgraded"], 1.0)
        || !is(["predictor", "phases"], "synchronous")
        || !number(["predictor", "drift"], 0.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_scenarios_without_draws_are_fixed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/bottleneck.toml");
        let drawn = |key: &str| Scenario::load(&path, &[key.to_owned()]).expect(key).is_drawn();
        assert!(!drawn("sample = \"20 ms\""));
        for key in [
            "underlay.jitter = \"1 ms\"",
            "underlay.loss = 0.01",
            "user.circuit1.start = [\"0 s\", \"1 s\"]",
            "user.circuit1.traffic = \"web\"",
            "system.predictor.predictor.phases = \"random\"",
        ] {
            assert!(drawn(key), "{key}");
        }
    }
}
