//! `tidegate lab real`: what options of tor change, measured on stock tor in an emulated network.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;

use super::fragment::Fragment;
use super::predict::Model;
use super::topology::Topology;
use crate::failure::Failure;
use crate::roles::need_tor;

/// Measure what options of tor change, on stock tor in an emulated network of its own
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  echo 'Schedulers Vanilla' > vanilla.torrc\n  tidegate lab real --torrc vanilla.torrc --predict"
)]
pub struct RealArgs {
    /// Add this file's options to every tor of the second side [default: run only the baseline]
    #[arg(long, value_name = "FILE")]
    torrc: Option<PathBuf>,
    /// Add this file's options to every tor of the first side [default: none]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Length of each round's measurement
    #[arg(long, default_value = "120 s")]
    duration: Span,
    /// Length of the endless downloads before the measurement
    #[arg(long, default_value = "20 s")]
    warmup: Span,
    /// Repeat both sides with other paths; two rounds or more give an interval over independent pairs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Draw the clients' paths and starts from this seed; each further round takes the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of clients, each with a tor of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=60))]
    clients: u16,
    /// Number of guards
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=30))]
    guards: u16,
    /// Number of middle relays
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=30))]
    middles: u16,
    /// Number of exits
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=30))]
    exits: u16,
    /// Sending rate of guards and exits
    #[arg(long, default_value = "10 Mbit/s")]
    rate: Rate,
    /// Sending rate of middle relays
    #[arg(long, default_value = "4 Mbit/s")]
    middle_rate: Rate,
    /// One-way delay between any two hosts
    #[arg(long, default_value = "40 ms")]
    delay: Span,
    /// Queue of each link, in packets
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    queue: u32,
    /// Congestion control of TCP; many kernels allow emulated hosts only their own default and Reno
    #[arg(long, default_value = "cubic", value_parser = ["cubic", "reno", "bbr"])]
    congestion: String,
    /// Simulate the same network, and print the prediction beside the measurement
    #[arg(long)]
    predict: bool,
    /// Print one JSON object with every measured value
    #[arg(long)]
    json: bool,
    /// Use this tor program; `tor-gencert` must be beside it or on the path
    #[arg(long, default_value = "tor")]
    tor: PathBuf,
}

/// One side: its name, its options and the simulator's settings.
struct SidePlan {
    name: &'static str,
    fragment: Fragment,
    model: Option<Model>,
}

impl RealArgs {
    fn topology(&self) -> Topology {
        let &RealArgs { clients, guards, middles, exits, rate, middle_rate, delay, queue, .. } = self;
        let congestion = self.congestion.clone();
        Topology { guards, middles, exits, clients, relay_rate: rate, middle_rate, delay, queue, congestion }
    }

    /// Refuses values that cannot be emulated.
    fn check(&self) -> Result<(), InputError> {
        let refuse = |option: &str, cause: &str, cure: &str| Err(InputError::new(option, cause, cure));
        let (second, hour) = (Span::from_secs(1), Span::from_secs(3600));
        if !(second..=hour).contains(&self.duration) {
            return refuse("--duration", "is not between 1 s and 1 h", "use 120 s, for example");
        }
        if !(second..=hour).contains(&self.warmup) {
            return refuse("--warmup", "is not between 1 s and 1 h", "use 20 s, for example");
        }
        if self.delay > Span::from_secs(1) {
            return refuse("--delay", "is longer than 1 s", "use 40 ms, for example");
        }
        for (option, rate) in [("--rate", self.rate), ("--middle-rate", self.middle_rate)] {
            // The forwarder carries packets in one thread, so it cannot emulate fast links.
            if !(100_000..=200_000_000).contains(&rate.0) {
                return refuse(
                    option,
                    "is not between 100 kbit/s and 200 Mbit/s",
                    "use 10 Mbit/s, for example",
                );
            }
        }
        Ok(())
    }

    /// Reads the sides' options.
    fn sides(&self) -> Result<Vec<SidePlan>, InputError> {
        let mut sides = vec![("baseline", Fragment::read(self.baseline.as_ref())?)];
        if let Some(file) = &self.torrc {
            let changed = Fragment::read(Some(file))?;
            if changed.equals(&sides[0].1) {
                let cause = "has the same options as the other side, so both sides would be the same";
                let cure = "write an option of tor into it, for example `Schedulers Vanilla`";
                return Err(InputError::new(file.display().to_string(), cause, cure));
            }
            sides.push(("changed", changed));
        }
        let plan = |(name, fragment): (&'static str, Fragment)| {
            let model = self.predict.then(|| Model::of(&fragment)).transpose()?;
            Ok(SidePlan { name, fragment, model })
        };
        sides.into_iter().map(plan).collect()
    }
}

/// Runs the subcommand.
pub fn main(arguments: &RealArgs) -> Result<ExitCode, Failure> {
    arguments.check()?;
    let sides = arguments.sides()?;
    need_tor(&arguments.tor)?;
    run(arguments, sides)
}

#[cfg(not(target_os = "linux"))]
fn run(_: &RealArgs, _: Vec<SidePlan>) -> Result<ExitCode, Failure> {
    let cause = "needs network namespaces and TUN devices, which only Linux has";
    Err(InputError::new("tidegate lab real", cause, "run it on Linux").into())
}

#[cfg(target_os = "linux")]
use on_linux::run;

#[cfg(target_os = "linux")]
mod on_linux {
    use std::thread;

    use tidegate_lab::monitor::Monitor;

    use super::super::effect::{self, Predicted, SideResult};
    use super::super::load::{self, ClientLoad, Schedule};
    use super::super::network::{self, Side};
    use super::super::predict::simulate;
    use super::super::topology::ClientPath;
    use super::{ExitCode, Failure, RealArgs, SidePlan};
    use crate::stage::Stage;

    /// Passes Ctrl-C on to simulations.
    struct Watch<'a>(&'a Stage);

    impl Monitor for Watch<'_> {
        fn stopped(&self) -> bool {
            self.0.is_stopped()
        }
    }

    pub fn run(arguments: &RealArgs, sides: Vec<SidePlan>) -> Result<ExitCode, Failure> {
        let stage = Stage::new("lab")?;
        for side in &sides {
            side.fragment.verify(&arguments.tor, &stage.directory)?;
        }
        // Without permission, say so before anything starts.
        network::underlay(&arguments.topology(), &["probe".to_owned()])?.end().map_err(Failure::other)?;
        let mut results: Vec<SideResult> = sides.iter().map(|_| SideResult::default()).collect();
        for round in 0..arguments.rounds {
            eprintln!("round {} of {}: {} side(s) of stock tor", round + 1, arguments.rounds, sides.len());
            let Err(failure) = measure_round(&stage, arguments, &sides, round, &mut results) else {
                continue;
            };
            // A failure must not discard the rounds before it.
            if round > 0 {
                eprintln!("round {} did not finish; these are the results before it", round + 1);
                print(arguments, &sides, &results)?;
            }
            return if stage.is_stopped() { Ok(ExitCode::from(130)) } else { Err(failure) };
        }
        print(arguments, &sides, &results)
    }

    /// Measures a round of all sides, and predicts it. Adds the results of a round that finished.
    fn measure_round(
        stage: &Stage,
        arguments: &RealArgs,
        sides: &[SidePlan],
        round: u32,
        results: &mut [SideResult],
    ) -> Result<(), Failure> {
        let seed = arguments.seed.wrapping_add(round.into());
        let paths = arguments.topology().paths(seed);
        // Both sides at once: what else this machine does delays both alike.
        let measured: Vec<Result<Measured, Failure>> = thread::scope(|scope| {
            let begin = |side| {
                let paths = &paths;
                scope.spawn(move || measure(stage, arguments, side, paths, round))
            };
            let running: Vec<_> = sides.iter().map(begin).collect();
            running.into_iter().map(|side| side.join().expect("a side does not panic")).collect()
        });
        let measured: Vec<Measured> = measured.into_iter().collect::<Result<_, _>>()?;
        if stage.is_stopped() {
            return Err(Failure::Stopped);
        }
        let predicted: Vec<_> = sides
            .iter()
            .map(|side| predict(stage, arguments, side, seed, &paths))
            .collect::<Result<_, _>>()?;
        for ((result, (loads, late, warnings)), predicted) in results.iter_mut().zip(measured).zip(predicted)
        {
            result.rounds.push(loads);
            result.late = result.late.max(late);
            result.warnings.extend(warnings);
            result.predicted.extend(predicted);
        }
        Ok(())
    }

    /// Loads of the clients, lateness of packets, and tor's warnings.
    type Measured = (Vec<ClientLoad>, f64, Vec<String>);

    fn measure(
        stage: &Stage,
        arguments: &RealArgs,
        side: &SidePlan,
        paths: &[ClientPath],
        round: u32,
    ) -> Result<Measured, Failure> {
        let name = format!("{}-{round}", side.name);
        let topology = arguments.topology();
        let running = Side::start(stage, &arguments.tor, &name, &topology, paths, &side.fragment)?;
        let schedule = Schedule { warmup: arguments.warmup, duration: arguments.duration };
        let loads = load::measure(stage, &running, schedule)?;
        let warnings = running.warnings();
        Ok((loads, running.end()?, warnings))
    }

    /// Simulates the round of a side, if it has a model.
    fn predict(
        stage: &Stage,
        arguments: &RealArgs,
        side: &SidePlan,
        seed: u64,
        paths: &[ClientPath],
    ) -> Result<Option<Predicted>, Failure> {
        let Some(model) = &side.model else { return Ok(None) };
        let spans = [arguments.warmup, arguments.duration];
        let predicted = simulate(&arguments.topology(), paths, model, spans, seed, &Watch(stage))?;
        predicted.map(Some).ok_or(Failure::Stopped)
    }

    fn print(arguments: &RealArgs, sides: &[SidePlan], results: &[SideResult]) -> Result<ExitCode, Failure> {
        let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
        if arguments.json {
            println!("{}", effect::document(&names, results));
        } else {
            println!("{}", effect::table(&names, results));
            let remarks = effect::remarks(&names, results, arguments.delay.as_secs_f64());
            remarks.iter().for_each(|line| println!("{line}"));
        }
        let is_measured = results.iter().flat_map(|side| &side.rounds).flatten();
        if is_measured.map(|client| client.downloads.len()).sum::<usize>() == 0 {
            return Err(Failure::Other("no small download finished; use a longer --duration".into()));
        }
        Ok(ExitCode::SUCCESS)
    }
}
