//! Repeats a random sample of recorded measurements and compares their digests.

use std::process::ExitCode;

use tidegate_control::random::Seed;
use tidegate_kernel::unix_s;
use tidegate_lab::scoreboard::RunError;
use tidegate_lab::scoreboard::record::{self, Recorded};

use super::planned::PlannedExperiment;
use super::until;
use crate::console::{Console, notice};
use crate::failure::Failure;

/// Verifies `count` records. Each took at most an equal share of the budget.
pub fn main(
    planned: Vec<PlannedExperiment>,
    count: usize,
    budget: Option<f64>,
    jobs: usize,
) -> Result<ExitCode, Failure> {
    let share = budget.map_or(f64::INFINITY, |budget| budget / count.max(1) as f64);
    let mut candidates: Vec<(PlannedExperiment, Recorded)> = Vec::new();
    for planned in planned {
        let recorded = record::read(&planned.experiment.folder)?;
        let Some(recorded) = recorded.filter(|recorded| recorded.digest.is_some()) else { continue };
        if recorded.cost.cpu_s <= share && planned.experiment.lacks().is_none() {
            candidates.push((planned, recorded));
        }
    }
    if candidates.is_empty() {
        return Err(Failure::Other(
            "no record has a digest and fits the budget; record one with `tidegate reproduce --record`"
                .into(),
        ));
    }
    // Another sample at each run.
    Seed::root(unix_s()).random().shuffle(&mut candidates);
    if candidates.len() < count {
        let few = candidates.len();
        let costly = budget.map_or(String::new(), |_| format!(", or cost more than {share:.0} s each"));
        notice(&format!("{few} of {count} records are repeated: others lack a digest or their data{costly}"));
    }
    candidates.truncate(count);
    let mut wrong = 0;
    for ((mut planned, recorded), number) in candidates.into_iter().zip(1..) {
        let name = format!("{}/{}", planned.experiment.paper, planned.experiment.figure);
        planned.experiment.extra_seeds = recorded.extra_seeds;
        let console = Console::new(0, jobs);
        console.title(&format!("{name} ({number} of {count})"));
        let measured = until::measure(&planned, recorded.scale, None, &console);
        console.finish();
        let said = match measured.map(|(measured, _)| measured.digest()) {
            Ok(digest) if Some(&digest) == recorded.digest.as_ref() => "same digest".to_owned(),
            Ok(digest) => {
                wrong += 1;
                let old = recorded.digest.unwrap_or_default();
                format!("digest {digest}, recorded {old} by commit {}", recorded.commit)
            }
            Err(RunError::Stopped) => return Ok(ExitCode::from(130)),
            Err(RunError::Input(error)) => return Err(error.into()),
            Err(RunError::Unavailable(why) | RunError::Failed(why)) => {
                wrong += 1;
                why
            }
        };
        println!("{name} at {} scale: {said}", recorded.scale);
    }
    if wrong > 0 {
        println!(
            "{wrong} differ: the program has changed since, or a record is damaged. Build the named commit to repeat its \
             numbers, or record them anew with `tidegate reproduce PAPER/FIGURE --record`"
        );
    }
    Ok(if wrong > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
