//! `[parameters]` of the runner `flashflow`, and the runs made from them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tidegate_control::units::{Rate, Span};
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::{MAX_MEASURERS, MAX_SECONDS};
use tidegate_sim::flashflow::{BackgroundPlan, GuestsPlan, MeasurerPlan, Plan, RelayPlan};
use tidegate_sim::plan::{LinkPlan, QueuePlan};
use tidegate_sim::tcp::{Buffer, Config};

use crate::input::{InputError, SourceFile, suggest};

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct MeasurementExperiment {
    /// Name of the file with the machines, in the folder of `experiment.toml`.
    pub hosts: String,
    /// Length of a measurement in seconds.
    seconds: u16,
    /// Sockets to a relay, over all measurers.
    sockets: Option<u16>,
    /// Team capacity as a multiple of the relay's capacity; without it measurers give all they have.
    factor: Option<f64>,
    /// Share of background in percent.
    #[serde(default = "quarter")]
    background_percent: u8,
    /// The teams that measure each relay.
    teams: Teams,
    /// Number of seeds; each quantity has a value per seed.
    #[serde(default = "one")]
    seeds: u32,
    /// Number of runs of each combination within a seed, as of a day with several measurements.
    #[serde(default = "one")]
    repeats: u32,
    /// Duration of background before and after the measurement.
    around: Option<Span>,
    /// Also compute the estimate of the first n seconds, for each n.
    #[serde(default)]
    pub medians: Vec<u16>,
    /// Also compute other estimators from the same seconds.
    #[serde(default)]
    pub estimators: bool,
    /// Relays, by the name that starts their quantities.
    pub relay: BTreeMap<String, RelayTable>,
    /// The parameter that is varied.
    pub sweep: Option<Sweep>,
}

fn one() -> u32 {
    1
}

fn quarter() -> u8 {
    25
}

/// Subsets of the measurers that act as a team.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Teams {
    /// `"every"` subset that has the capacity, `"each"` measurer alone, or `"all"` as one team.
    Kind(String),
    /// These measurers as one team.
    One(Vec<String>),
}

/// A sweep over `sockets`, `factor` or `seconds`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sweep {
    /// The parameter that is varied.
    pub over: String,
    /// Its values.
    pub values: Vec<f64>,
}

/// One relay, or several equal relays on one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RelayTable {
    /// Rate limit.
    #[serde(default)]
    rate: Option<Rate>,
    /// Number of relays on the machine that are measured together.
    #[serde(default = "one")]
    count: u32,
    /// Rate of the clients' traffic.
    #[serde(default)]
    background: Option<Rate>,
    /// Rate of one processor core, if lower than the machine's.
    #[serde(default)]
    core: Option<Rate>,
    /// Share of its seconds in which a cell takes twice the processor time.
    #[serde(default)]
    slow: f64,
    /// Whether the relay holds cells back and claims background that does not exist.
    #[serde(default)]
    holds: bool,
    /// Whether the measurers' machines have their other guests; all do unless this is false.
    #[serde(default)]
    guests: Option<bool>,
    /// Socket buffer limit of its kernel and the measurers' kernels in bytes, instead of the machines' own.
    #[serde(default)]
    socket_buffer: Option<u32>,
}

/// The file with the machines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostsFile {
    target: TargetTable,
    measurer: Vec<MeasurerTable>,
    /// Round-trip time between the coordinator and all other machines.
    coordinator_rtt: Span,
    /// Limits of the kernel's socket buffers, in bytes.
    #[serde(default)]
    send_buffer: Option<u32>,
    #[serde(default)]
    receive_buffer: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TargetTable {
    link: Rate,
    /// Rate that one core of a relay forwards.
    core: Rate,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MeasurerTable {
    name: String,
    link: Rate,
    rtt: Span,
    #[serde(default)]
    jitter: Option<Span>,
    #[serde(default)]
    loss: f64,
    /// Other guests of the machine.
    #[serde(default)]
    guests: Option<GuestsTable>,
}

/// See [`GuestsPlan`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GuestsTable {
    mean: f64,
    stay: Span,
}

/// The machines, checked.
pub(crate) struct Hosts {
    link: Rate,
    core: Rate,
    measurers: Vec<(String, MeasurerPlan)>,
    coordinator_delay: Span,
    tcp: Config,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Prefix of its quantities: the relay and the value of the sweep.
    pub name: String,
    /// The relay.
    pub relay: String,
    /// The value of the sweep.
    pub at: Option<f64>,
    /// Names of the team's measurers.
    pub team: String,
    /// Number of the seed, from 0.
    pub seed: u32,
    /// Number of the repetition within the seed, from 0.
    pub repeat: u32,
    /// True capacity of each relay, in bit/s.
    pub truth: f64,
    /// The plan to simulate.
    pub plan: Plan,
}

/// Longest `around`.
const MAX_AROUND: Span = Span::from_secs(600);

fn link(rate: Rate) -> LinkPlan {
    // Queues hold 50 ms of traffic, as switches and interfaces do.
    LinkPlan { rate, queue: QueuePlan::DropTail { packets: u32::MAX, bytes: rate.0 / 8 / 20 } }
}

/// TCP with socket buffers that grow up to these sizes.
fn buffering(tcp: Config, send: Option<u32>, receive: Option<u32>) -> Config {
    let auto = |initial, max: Option<u32>, before| max.map_or(before, |max| Buffer::Auto { initial, max });
    Config {
        send_buffer: auto(46_080, send, tcp.send_buffer),
        receive_buffer: auto(65_536, receive, tcp.receive_buffer),
        ..tcp
    }
}

impl Hosts {
    /// Reads the file.
    ///
    /// # Errors
    /// [`InputError`] for a file that cannot be read or has a mistake.
    pub(crate) fn load(path: &Path) -> Result<Hosts, InputError> {
        let source = SourceFile::read(path)?;
        let file: HostsFile = source.parse_toml("experiments/flashflow/internet.toml is a complete file")?;
        let fail = |cause: String, cure: &str| Err(InputError::new(source.file.clone(), cause, cure));
        if !(1..=MAX_MEASURERS).contains(&file.measurer.len()) {
            return fail(format!("has {} measurers", file.measurer.len()), "give 1 to 10 [[measurer]]s");
        }
        if let Some(bad) = file.measurer.iter().find(|m| !(0.0..1.0).contains(&m.loss)) {
            return fail(format!("measurer {}: loss is {}", bad.name, bad.loss), "give 0 to 1");
        }
        if file.target.core.0 == 0 || file.target.link.0 == 0 {
            return fail("the target's rates must not be zero".into(), "give a rate such as \"1 Gbit/s\"");
        }
        let wrong = |guests: GuestsTable| !(guests.mean > 0.0 && guests.mean <= 100.0) || guests.stay.0 == 0;
        if let Some(bad) = file.measurer.iter().find(|m| m.guests.is_some_and(wrong)) {
            let cause =
                format!("measurer {}: guests have no mean above 0 and up to 100, or no stay", bad.name);
            return fail(cause, "give guests = { mean = 1.2, stay = \"60 s\" }");
        }
        // Linux grows socket buffers up to the kernel's limits, which the paper names (appendix D.1).
        let tcp = buffering(Config::default(), file.send_buffer, file.receive_buffer);
        let measurers = file.measurer.into_iter().map(|m| {
            let (delay, jitter) = (m.rtt / 2, m.jitter.unwrap_or(Span::ZERO));
            let guests = m.guests.map(|guests| GuestsPlan { mean: guests.mean, stay: guests.stay });
            (m.name, MeasurerPlan { link: link(m.link), delay, jitter, loss: m.loss, guests })
        });
        Ok(Hosts {
            link: file.target.link,
            core: file.target.core,
            measurers: measurers.collect(),
            coordinator_delay: file.coordinator_rtt / 2,
            tcp,
        })
    }

    /// The measurers, with the guests of their machines unless `guests` is false.
    fn measurers(&self, guests: Option<bool>) -> Result<Vec<MeasurerPlan>, String> {
        if guests.is_some() && self.measurers.iter().all(|(_, measurer)| measurer.guests.is_none()) {
            return Err("guests has no effect, because no measurer's machine has any".into());
        }
        let kept = |of: &MeasurerPlan| of.guests.filter(|_| guests != Some(false));
        let plan = |(_, of): &(String, MeasurerPlan)| MeasurerPlan { guests: kept(of), ..of.clone() };
        Ok(self.measurers.iter().map(plan).collect())
    }

    /// True capacity of a relay in bit/s: the smallest of its limit, its core and the link.
    fn truth(&self, table: &RelayTable) -> f64 {
        let payload = f64::from(self.tcp.mss) / f64::from(self.tcp.mss + self.tcp.header_bytes);
        let limit = table.rate.unwrap_or(Rate::UNLIMITED).0 as f64;
        let core = table.core.unwrap_or(self.core).0 as f64;
        limit.min(core).min(self.link.0 as f64 * payload)
    }
}

impl MeasurementExperiment {
    /// All runs, checked.
    ///
    /// # Errors
    /// [`InputError`] with `place` as the file.
    pub(crate) fn jobs(&self, hosts: &Hosts, place: &str) -> Result<Vec<Job>, InputError> {
        let fail = |cause: String, cure: &str| Err(InputError::new(place, cause, cure));
        const SWEEPS: [&str; 3] = ["sockets", "factor", "seconds"];
        let values: Vec<Option<f64>> = match &self.sweep {
            None => vec![None],
            Some(sweep) if SWEEPS.contains(&sweep.over.as_str()) => {
                sweep.values.iter().copied().map(Some).collect()
            }
            Some(sweep) => {
                let cure = suggest(&sweep.over, &SWEEPS);
                return fail(format!("cannot sweep over `{}`", sweep.over), &cure);
            }
        };
        let mut jobs = Vec::new();
        for (name, table) in &self.relay {
            for at in &values {
                for team in self.teams(hosts, table, *at, place)? {
                    let job = self.job(hosts, (name, table), *at, &team);
                    let job = match job {
                        Ok(job) => job,
                        Err(cause) => {
                            return fail(format!("relay `{name}`: {cause}"), "see docs/flashflow.md");
                        }
                    };
                    // The seed changes keys, loss and jitter, not the plan.
                    for seed in 0..self.seeds {
                        jobs.extend((0..self.repeats).map(|repeat| Job { seed, repeat, ..job.clone() }));
                    }
                }
            }
        }
        if !(1..=10_000).contains(&jobs.len()) {
            return fail(format!("asks for {} runs", jobs.len()), "give 1 to 10000 runs");
        }
        Ok(jobs)
    }

    fn factor(&self, at: Option<f64>) -> Option<f64> {
        self.swept("factor", at).or(self.factor)
    }

    fn swept(&self, over: &str, at: Option<f64>) -> Option<f64> {
        at.filter(|_| self.sweep.as_ref().is_some_and(|sweep| sweep.over == over))
    }

    /// The teams that can measure a relay, as indices of their members.
    fn teams(
        &self,
        hosts: &Hosts,
        table: &RelayTable,
        at: Option<f64>,
        place: &str,
    ) -> Result<Vec<Vec<usize>>, InputError> {
        let all = hosts.measurers.len();
        // Members share the load equally, so each needs a link for its share.
        let needed = self.factor(at).map_or(0.0, |f| f * hosts.truth(table) * f64::from(table.count));
        let able = |team: &Vec<usize>| {
            let share = needed / team.len() as f64;
            team.iter().all(|&m| hosts.measurers[m].1.link.rate.0 as f64 >= share)
        };
        match &self.teams {
            Teams::Kind(kind) if kind == "all" => Ok(vec![(0..all).collect()]),
            Teams::Kind(kind) if kind == "each" => Ok((0..all).map(|m| vec![m]).collect()),
            Teams::Kind(kind) if kind == "every" => {
                let subset = |bits: usize| (0..all).filter(|m| bits >> m & 1 == 1).collect();
                Ok((1..1 << all).map(subset).filter(able).collect())
            }
            Teams::Kind(kind) => {
                let cure = suggest(kind, &["all", "each", "every"]);
                Err(InputError::new(place, format!("teams = \"{kind}\""), cure))
            }
            Teams::One(names) => {
                let known: Vec<&str> = hosts.measurers.iter().map(|(name, _)| name.as_str()).collect();
                let find = |name: &String| {
                    known.iter().position(|k| k == name).ok_or_else(|| {
                        InputError::new(place, format!("no measurer `{name}`"), suggest(name, &known))
                    })
                };
                Ok(vec![names.iter().map(find).collect::<Result<_, _>>()?])
            }
        }
    }

    fn job(
        &self,
        hosts: &Hosts,
        (name, table): (&str, &RelayTable),
        at: Option<f64>,
        team: &[usize],
    ) -> Result<Job, String> {
        let seconds = self.swept("seconds", at).unwrap_or_else(|| f64::from(self.seconds));
        if !(1.0..=f64::from(MAX_SECONDS)).contains(&seconds) {
            return Err(format!("{seconds} seconds"));
        }
        let sockets =
            self.swept("sockets", at).unwrap_or_else(|| f64::from(self.sockets.unwrap_or(160))) as u16;
        if !(1..=1000).contains(&sockets)
            || self.background_percent >= 100
            || !(1..=64).contains(&table.count)
        {
            return Err("sockets, background-percent or count is out of range".into());
        }
        let limit = table.rate.unwrap_or(Rate::UNLIMITED);
        let around = self.around.unwrap_or(Span::ZERO);
        if limit.0 < 100_000 || around > MAX_AROUND {
            return Err("rate is below 100 kbit/s, or around above 600 s".into());
        }
        let core = table.core.unwrap_or(hosts.core);
        if !(0.0..=1.0).contains(&table.slow) || core.0 == 0 {
            return Err("slow is a share from 0 to 1, core a rate above zero".into());
        }
        if table.holds && table.rate.is_none() {
            return Err("a relay that holds cells back needs a rate, what it can decrypt".into());
        }
        let measurers = hosts.measurers(table.guests)?;
        let truth = hosts.truth(table);
        // As the coordinator allocates, but from the true capacity instead of a guess.
        let wanted = self.factor(at).map(|f| f * truth / team.len() as f64);
        let mut shares = vec![(Rate(0), 0); hosts.measurers.len()];
        let rates = team.iter().map(|&m| {
            let most = hosts.measurers[m].1.link.rate.0 / u64::from(table.count);
            wanted.map_or(Rate(most), |wanted| Rate(wanted as u64))
        });
        let rates: Vec<Rate> = rates.collect();
        let dealt = tidegate_control::flashflow::share_sockets(sockets, &rates);
        for ((m, rate), sockets) in team.iter().zip(rates).zip(dealt) {
            shares[*m] = (rate, sockets);
        }
        let background = table.background.unwrap_or(Rate(0));
        let relay = RelayPlan {
            rate: limit,
            cell_cost: core.span_for(CELL as u64),
            slow: table.slow,
            holds: table.holds,
            background: BackgroundPlan { rate: background, circuits: if background.0 > 0 { 40 } else { 0 } },
            shares,
        };
        let names: Vec<&str> = team.iter().map(|&m| hosts.measurers[m].0.as_str()).collect();
        let sweep = self.sweep.as_ref().zip(at);
        Ok(Job {
            name: sweep.map_or(name.into(), |(sweep, at)| format!("{name}.{}-{at}", sweep.over)),
            relay: name.into(),
            at,
            team: names.join("+"),
            seed: 0,
            repeat: 0,
            truth,
            plan: Plan {
                link: link(hosts.link),
                relays: vec![relay; table.count as usize],
                measurers,
                coordinator_delay: hosts.coordinator_delay,
                seconds: seconds as u16,
                background_percent: self.background_percent,
                check_one_in: 125,
                around,
                tcp: buffering(hosts.tcp.clone(), table.socket_buffer, table.socket_buffer),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/flashflow")
    }

    fn jobs(parameters: &str) -> Result<Vec<Job>, String> {
        let parameters: MeasurementExperiment =
            toml::from_str(parameters).map_err(|error| error.to_string())?;
        let hosts = Hosts::load(&root().join("internet.toml")).map_err(|error| error.to_string())?;
        parameters.jobs(&hosts, "here").map_err(|error| error.to_string())
    }

    const FINE: &str = "hosts = \"x\"\nseconds = 5\nfactor = 3.0\nteams = \"every\"\n\
        [relay.a]\nrate = \"500 Mbit/s\"\n[relay.b]\nrate = \"10 Mbit/s\"\n";

    #[test]
    fn teams_are_those_with_the_capacity() {
        let jobs = jobs(FINE).unwrap();
        // 1500 Mbit/s: NL alone, and every team of two or more.
        assert_eq!(jobs.iter().filter(|job| job.relay == "a").count(), 12);
        assert_eq!(jobs.iter().filter(|job| job.relay == "b").count(), 15);
        for job in &jobs {
            let shares = &job.plan.relays[0].shares;
            let sum: u64 = shares.iter().map(|(rate, _)| rate.0).sum();
            assert!((sum as f64 / job.truth - 3.0).abs() < 0.01);
            assert_eq!(shares.iter().map(|(_, sockets)| u32::from(*sockets)).sum::<u32>(), 160);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let with = |from: &str, to: &str| jobs(&FINE.replace(from, to)).unwrap_err();
        assert!(with("every", "evry").contains("did you mean `every`"));
        assert!(with("\"every\"", "[\"NL\", \"XY\"]").contains("no measurer `XY`"));
        assert!(with("seconds = 5", "seconds = 0").contains("0 seconds"));
        assert!(with("500 Mbit/s", "5 kbit/s").contains("below 100 kbit/s"));
        assert!(with("500 Mbit/s", "500").contains("500"));
        assert!(with("factor", "faktor").contains("unknown field"));
        let sweep = |over: &str| jobs(&format!("{FINE}[sweep]\nover = \"{over}\"\nvalues = [0]"));
        assert!(sweep("socket").unwrap_err().contains("did you mean `sockets`"));
        assert!(sweep("sockets").unwrap_err().contains("out of range"));
        assert!(with("rate = \"10 Mbit/s\"", "guests = true").contains("no effect"));
    }

    #[test]
    fn every_experiment_of_the_paper_gives_runs_at_both_scales() {
        use crate::scoreboard::{Experiment, Scale};
        const FIGURES: [&str; 9] = [
            "figure-6",
            "figure-7",
            "figure-14",
            "figure-15",
            "figure-15-causes",
            "figure-16",
            "hold",
            "host-noise",
            "table-4",
        ];
        for figure in FIGURES {
            let experiment = Experiment::load(
                root().parent().expect("experiments"),
                Path::new("no-data"),
                "flashflow",
                figure,
            )
            .unwrap();
            for scale in Scale::ALL {
                let parameters: MeasurementExperiment = experiment.parameters(scale).unwrap();
                let hosts = Hosts::load(&experiment.folder.join(&parameters.hosts)).unwrap();
                assert!(!parameters.jobs(&hosts, figure).unwrap().is_empty(), "{figure} {scale}");
            }
        }
    }
}
