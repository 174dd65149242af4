//! The same network in the simulator.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use tidegate_control::units::{Bytes, Rate, Span};
use tidegate_data::torrc::size;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs;
use tidegate_lab::scenario::{Scenario, apply_parameters, models_parameter};
use tidegate_lab::statistics::median;

use super::fragment::{Fragment, TorOption};
use super::schedule::{METRICS, PAUSE};
use super::topology::{ClientPath, END, Topology};

/// Start of the endless downloads in the simulator. Circuits are built before.
const LEAD: Span = Span::from_secs(10);
/// Before, a byte is fetched over each circuit, as in the real network, where it makes tor build the circuit. Its cell counts for
/// the first SENDME: the 31st cell of the download is then in the first burst of the server.
const BYTE: Span = Span::from_secs(5);
/// Unix time of the consensus of 2024 ([`tidegate_lab::scenario::parameters_of_2024`]).
const TIME: u64 = 1_715_965_200;

/// The simulator's settings for one side.
pub struct Model {
    /// Keys of `[[system]]`.
    system: Value,
    /// Token bucket of relays.
    bucket: Option<(Rate, Option<Bytes>)>,
}

impl Model {
    /// Translates options in lines of a torrc; `place` names them in errors.
    ///
    /// # Errors
    /// If the lab or the simulator does not allow an option.
    pub fn of_text(place: &str, options: &str) -> Result<Model, InputError> {
        Model::of(&Fragment::parse(SourceFile { file: place.to_owned(), text: options.to_owned() })?)
    }

    /// Translates the options of a side.
    ///
    /// # Errors
    /// If the simulator does not model an option or a parameter.
    pub fn of(fragment: &Fragment) -> Result<Model, InputError> {
        let cure = "drop --predict, or the line";
        let mut system = json!({});
        for name in fragment.parameters_set() {
            if !models_parameter(name) {
                let cause = format!("the simulator does not model the parameter `{name}`");
                return Err(fragment.refuse_parameter(name, cause, cure));
            }
        }
        apply_parameters(&mut system, &fragment.parameters, TIME);
        let (mut rate, mut burst) = (None, None);
        for option in &fragment.options {
            let value = option.value.to_lowercase();
            let understood = match option.name.to_lowercase().as_str() {
                "schedulers" => scheduler(&value).map(|name| system["channel-scheduler"] = name.into()),
                // tor takes 0 as the consensus' value.
                "kistschedruninterval" => milliseconds(&value).map(|span| {
                    if span > Span::ZERO {
                        system["kist"]["interval"] = span.to_string().into()
                    }
                }),
                "circuitpriorityhalflife" => {
                    value.parse::<f64>().ok().filter(|seconds| *seconds > 0.0).map(|seconds| {
                        system["ewma"]["half-life"] = Span((seconds * 1e9) as u64).to_string().into()
                    })
                }
                "relaybandwidthrate" => size(&value).map(|bytes| rate = Some((Bytes(bytes), option))),
                "relaybandwidthburst" => size(&value).map(|bytes| burst = Some((Bytes(bytes), option))),
                // These change what tor says, not what it does.
                "log" | "safelogging" | "logmessagedomains" | "logtimegranularity" => Some(()),
                _ => None,
            };
            if understood.is_none() {
                let cause = format!("the simulator does not model `{} {}`", option.name, option.value);
                return Err(fragment.refuse(option, cause, cure));
            }
        }
        // tor 0.4.9 carries 488 bytes in a relay cell of circuits with congestion control.
        if system["control"] == "vegas" {
            system["packaging"]["cell"] = 488.into();
        }
        Ok(Model { system, bucket: bucket(fragment, rate, burst)? })
    }
}

/// A limit of bytes per second, and the option that sets it.
type Limit<'a> = Option<(Bytes, &'a TorOption)>;

fn bucket(
    fragment: &Fragment,
    rate: Limit<'_>,
    burst: Limit<'_>,
) -> Result<Option<(Rate, Option<Bytes>)>, InputError> {
    match (rate, burst) {
        (None, None) => Ok(None),
        (None, Some((_, option))) => {
            let cause = "RelayBandwidthBurst does not have an effect without RelayBandwidthRate";
            Err(fragment.refuse(option, cause, "set RelayBandwidthRate, too"))
        }
        (Some((rate, _)), burst) => Ok(Some((Rate(8 * rate.0), burst.map(|(bytes, _)| bytes)))),
    }
}

/// The first scheduler of tor's list. KISTLite does not ask the kernel, and is not modelled.
fn scheduler(list: &str) -> Option<&'static str> {
    match list.split(',').next().map(str::trim) {
        Some("kist") => Some("kist"),
        Some("vanilla") => Some("vanilla"),
        _ => None,
    }
}

/// Reads a time, as tor does: "10 msec".
fn milliseconds(value: &str) -> Option<Span> {
    let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
    let scale = match unit.trim() {
        "" | "msec" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "second" | "seconds" => 1000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale).map(Span::from_millis)
}

/// The scenario of a round.
fn scenario(
    topology: &Topology,
    paths: &[ClientPath],
    model: &Model,
    [warmup, duration]: [Span; 2],
) -> String {
    let (from, until) = (LEAD + warmup, LEAD + warmup + duration);
    let mut text = format!(
        "title = \"The network of `tidegate lab real`\"\nduration = \"{until}\"\nwarmup = \"{from}\"\nsample = \"1 s\"\n\
         trace-one-in = 0\n\n[underlay]\ndelay = \"{}\"\n\n[traffic.web]\n\
         requests = [{{ size = \"50 KiB\", timeout = \"never\" }}]\npause = \"{PAUSE}\"\n\n[traffic.byte]\n\
         requests = [{{ size = \"1 B\", timeout = \"never\" }}]\npause = \"1 h\"\n",
        topology.delay
    );
    let mut system = model.system.clone();
    system["name"] = "tor".into();
    // tor writes 4 KiB at a time as a TLS record.
    system["tls"]["record-cells"] = 8.into();
    system["tcp"]["congestion"] = topology.congestion.clone().into();
    let tables = toml::to_string(&json!({ "system": [system] })).expect("JSON without null is TOML");
    put(&mut text, format_args!("\n{tables}"));
    let queue = topology.queue;
    for name in topology.relays() {
        let rate = topology.rate(&name);
        put(
            &mut text,
            format_args!("\n[[relay]]\nname = \"{name}\"\nup = \"{rate}\"\ndown = \"1 Gbit/s\"\n"),
        );
        put(&mut text, format_args!("queue = \"{queue} packets\"\n"));
        if let Some((rate, burst)) = model.bucket {
            let burst = burst.unwrap_or(Bytes(rate.0 / 8));
            // A step is 16 ticks of 2^20 ns (docs/real-tor.md).
            let fixed = "refill = \"16777216 ns\", drop-fractions = true, retry = \"100 ms\"";
            put(
                &mut text,
                format_args!("bandwidth = {{ rate = \"{rate}\", burst = \"{burst}\", {fixed} }}\n"),
            );
        }
    }
    let ends = paths.iter().map(|path| ("client", path.client.as_str())).chain([("server", "server")]);
    for (kind, name) in ends {
        put(
            &mut text,
            format_args!("\n[[{kind}]]\nname = \"{name}\"\nlink = \"{END}\"\nqueue = \"{queue} packets\"\n"),
        );
    }
    for ClientPath { client, hops, offset } in paths {
        let at = format!("client = \"{client}\"\nserver = \"server\"\n");
        for (name, start) in [("bulk", LEAD + *offset), ("web", from + *offset)] {
            put(
                &mut text,
                format_args!(
                    "\n[[user]]\nname = \"{name}-{client}\"\ntraffic = \"{name}\"\npath = {hops:?}\n{at}\
                     start = \"{start}\"\nstop = \"{until}\"\ncircuit-lead = \"{}\"\n\n\
                     [[user]]\nname = \"byte-{name}-{client}\"\ntraffic = \"byte\"\n{at}\
                     shares = \"{name}-{client}\"\nstart = \"{BYTE}\"\n",
                    start - Span::from_secs(1)
                ),
            );
        }
    }
    text
}

fn put(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes any text");
}

/// Simulates a round and returns the [`METRICS`]. `None` if the user stopped the run.
///
/// # Errors
/// If the simulator refuses the network.
pub fn simulate(
    topology: &Topology,
    paths: &[ClientPath],
    model: &Model,
    spans: [Span; 2],
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<Option<[f64; METRICS.len()]>, InputError> {
    let text = scenario(topology, paths, model, spans);
    let source = SourceFile { file: "the network of --predict".into(), text };
    let scenario = Scenario::parse(source, PathBuf::new(), &[])?;
    let Some(run) = runs::run_once(&scenario, 0, seed, monitor)? else { return Ok(None) };
    let summary = &run.metrics.summary;
    let web = |metric: &str| summary[metric]["web"]["p50"].as_f64().unwrap_or(f64::NAN);
    let rate = |path: &ClientPath| {
        summary["throughput_bytes_per_s"][format!("bulk-{}", path.client)].as_f64().unwrap_or(f64::NAN) / 1e3
    };
    let bulk = median(paths.iter().map(rate).collect()).expect("a round has clients");
    Ok(Some([web("connect_s"), web("ttlb_s"), bulk]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Result<Model, InputError> {
        Model::of_text("side.torrc", text)
    }

    #[test]
    fn options_become_keys() {
        let plain = Model::of(&Fragment::empty()).unwrap();
        assert_eq!((plain.system["control"].as_str(), plain.bucket), (Some("vegas"), None));
        assert_eq!(plain.system["kist"]["interval"], "3 ms");
        let changed = "Schedulers Vanilla\nConsensusParams cc_alg=0\nCircuitPriorityHalflife 10\n\
            KISTSchedRunInterval 10 msec\nRelayBandwidthRate 500 KBytes\nRelayBandwidthBurst 1 MB\n";
        let changed = model(changed).unwrap();
        assert_eq!(changed.system["channel-scheduler"], "vanilla");
        assert_eq!(changed.system["control"], "windows");
        assert_eq!(changed.system["packaging"], Value::Null);
        assert_eq!(changed.system["ewma"]["half-life"], "10 s");
        assert_eq!(changed.system["kist"]["interval"], "10 ms");
        assert_eq!(changed.bucket, Some((Rate(4_096_000), Some(Bytes(1 << 20)))));
    }

    #[test]
    fn what_is_not_modelled_is_refused() {
        for text in [
            "NumEntryGuards 2\n",
            "Schedulers KISTLite\n",
            "BandwidthRate 1 MB\n",
            "RelayBandwidthRate 1 parsec\n",
            "RelayBandwidthBurst 1 MB\n",
            "ConsensusParams cbttestfreq=10\n",
        ] {
            let error = model(text).map(|_| ()).unwrap_err();
            assert!(error.at.is_some_and(|(line, _)| line == 1), "{text}: {error}");
        }
    }

    #[test]
    fn the_scenario_runs() {
        let network = Topology {
            guards: 1,
            middles: 1,
            exits: 1,
            clients: 1,
            relay_rate: Rate(10_000_000),
            middle_rate: Rate(4_000_000),
            delay: Span::from_millis(10),
            queue: 100,
            congestion: "reno".into(),
        };
        let model = model("RelayBandwidthRate 400 KB\n").unwrap();
        let paths = network.paths(1);
        let spans = [1, 2].map(Span::from_secs);
        struct Quiet;
        impl Monitor for Quiet {}
        let [connect, last_byte, bulk] =
            simulate(&network, &paths, &model, spans, 1, &Quiet).unwrap().unwrap();
        assert!(connect > 0.08 && last_byte > connect && bulk > 10.0, "{connect} {last_byte} {bulk}");
    }
}
