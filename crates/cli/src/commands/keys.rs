//! `tidegate keys`: documents the keys of a scenario file.

use std::process::ExitCode;

use tidegate_lab::scenario::keys;
use tidegate_lab::systems;
use tidegate_proto::combinations;

use crate::failure::Failure;

/// List the keys of a scenario file with unit, default, range and source
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate keys kist\n  tidegate keys relay.guard.link")]
pub struct KeysArgs {
    /// List only keys with this text in their name or description
    pattern: Option<String>,
    /// Print the JSON Schema for editors
    #[arg(long, conflicts_with_all = ["pattern", "markdown", "systems"])]
    schema: bool,
    /// Print the reference page docs/scenario.md
    #[arg(long, conflicts_with_all = ["pattern", "systems", "combinations"])]
    markdown: bool,
    /// Print the page of published systems, docs/systems.md
    #[arg(long, conflicts_with_all = ["pattern", "combinations"])]
    systems: bool,
    /// Print which combinations of parts do not run, and why (docs/combinations.md)
    #[arg(long, conflicts_with_all = ["pattern", "schema"])]
    combinations: bool,
}

/// Runs the subcommand.
pub fn main(arguments: KeysArgs) -> Result<ExitCode, Failure> {
    if arguments.schema {
        println!("{:#}", keys::schema());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.markdown {
        print!("{}", keys::page());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.systems {
        print!("{}", systems::page());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.combinations {
        print!("{}", combinations::page());
        return Ok(ExitCode::SUCCESS);
    }
    // `[every-system]` has the keys of a system.
    let pattern = arguments.pattern.unwrap_or_default();
    let pattern =
        pattern.strip_prefix("every-system").map_or(pattern.clone(), |rest| format!("system[]{rest}"));
    let found = keys::find(&pattern);
    for key in &found {
        let mut facts = vec![key.form.clone()];
        facts.extend((!key.range.is_empty()).then(|| format!("range {}", key.range)));
        facts.extend(key.default.as_ref().map(|default| format!("default {default}")));
        facts.extend(key.required.then(|| "required".to_owned()));
        facts.extend((!key.source.is_empty()).then(|| format!("source: {}", key.source)));
        println!("{}\n    {}\n    {}", key.path, key.about, facts.join("; "));
        if !key.table {
            println!("    --set {}=VALUE", keys::set_path(&key.path));
        }
    }
    if found.is_empty() {
        eprintln!("no key contains this text; `tidegate keys` lists all");
        return Ok(ExitCode::from(2));
    }
    Ok(ExitCode::SUCCESS)
}
