//! Exports stored runs in the formats of other tools.

pub mod onionperf;
pub mod tornettools;

use std::collections::BTreeSet;

use crate::input::InputError;
use crate::metrics::transfers;
use crate::store::Record;

/// Start of simulated time as in Shadow: 1 January 2000, in Unix seconds.
pub(crate) const EPOCH_UNIX_S: u64 = 946_684_800;

/// The transfers of a class of users; the tools call these measuring users clients.
fn clients<'a>(record: &'a Record, class: &str) -> Result<Vec<&'a transfers::Record>, InputError> {
    let users = &record.metrics.users;
    if !users.iter().any(|user| user.class == class) {
        let classes: BTreeSet<&str> = users.iter().map(|user| user.class.as_str()).collect();
        let cure = format!("use one of {}", classes.into_iter().collect::<Vec<_>>().join(", "));
        return Err(InputError::new("--class", format!("no user has the class `{class}`"), cure));
    }
    let all = record.metrics.transfers.records.iter();
    Ok(all.filter(|transfer| users[transfer.user as usize].class == class).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tidegate_data::document::Document;
    use tidegate_data::formats::DOWNLOADS;

    use super::*;
    use crate::store::Provenance;

    fn record() -> Record {
        Record {
            point: BTreeMap::new(),
            system: "vanilla".into(),
            seed: 7,
            digest: "0".into(),
            wall_s: 75.5,
            cpu_s: 75.5,
            provenance: Provenance { version: String::new(), commit: String::new(), ended_unix_s: 0 },
            metrics: Arc::new(crate::metrics::tests::of_five_mib()),
        }
    }

    #[test]
    fn tornettools_files_have_the_fields_of_its_plots() {
        let mut record = record();
        Arc::get_mut(&mut record.metrics).unwrap().relayed_cells.curves = vec![vec![1, 2, 3]];
        let class = record.metrics.users[0].class.clone();
        let parameters =
            json!({ "scenario": { "warmup": "1 s", "duration": "10 s", "tor": { "fraction": 0.01 } } });
        let files = tornettools::files(&record, &parameters, &class).unwrap();
        let file = |name: &str| -> Value {
            let (_, bytes) = files.iter().find(|(file, _)| *file == format!("{name}.json")).unwrap();
            serde_json::from_slice(bytes).unwrap()
        };
        assert_eq!(file("time_to_last_byte_recv.exit"), json!({ "ALL": [1.0, 2.0], "5242880": [1.0, 2.0] }));
        assert_eq!(file("round_trip_time.exit"), json!([0.05]));
        // One of three timed out, and one transfer is a third.
        assert_eq!(file("error_rate.exit")["ALL"][0][0], json!(100.0 / 3.0));
        assert_eq!(file("error_rate.exit")["TIMEOUT"], file("error_rate.exit")["ALL"]);
        assert_eq!(file("perfclient_goodput_5MiB.exit"), json!([40.0]), "1 MiB in 0.2 s, in Mibit/s");
        assert_eq!(file("relay_goodput"), json!({ "1": 2 * 514, "2": 3 * 514 }));
        assert_eq!(file("resource_usage")["run_time"]["real_seconds_per_sim_second"]["10.0"], json!(75.5));
        assert_eq!(file("simulation_info")["net_scale"], json!(0.01));
        let built = file("perfclient_circuit_build_time.exit")[0].as_f64().unwrap();
        assert!((built / 0.25 - 1.0).abs() < 0.004, "{built}");
        let error = tornettools::files(&record, &parameters, "nobody").unwrap_err();
        assert!(error.to_string().contains("no user has the class `nobody`"), "{error}");
    }

    #[test]
    fn an_analysis_is_read_back() {
        let record = record();
        let analysis = onionperf::analysis(&record, &record.metrics.users[0].class).unwrap();
        let document = Document::new("x.json", analysis.to_string()).unwrap();
        let measured = DOWNLOADS.read(std::path::Path::new("torperf.json"), &document).unwrap();
        let [download] = &measured.downloads[..] else { panic!("{measured:?}") };
        assert_eq!((download.bytes, &download.ttlb_s[..]), (5 << 20, &[1.0, 2.0][..]));
        assert_eq!(download.ttfb_s, [0.1]);
        let requests = measured.requests.unwrap();
        assert_eq!((requests.made, requests.timed_out, requests.failed), (3, 1, 0));
    }
}
