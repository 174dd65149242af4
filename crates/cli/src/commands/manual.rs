//! `tidegate manual`: writes manual pages, shell completions and the page of all subcommands.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::{Generator as _, Shell};
use tidegate_lab::input::InputError;
use tidegate_lab::report::staged::Staged;

use super::live::LiveCommand;
use crate::failure::Failure;

/// Write manual pages, shell completions and the page of all subcommands
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate manual target/manual")]
pub struct ManualArgs {
    /// Write man/*.1, completions/* and commands.md to this folder
    out: PathBuf,
}

/// Runs the subcommand; `command` describes the whole tool.
pub fn main(arguments: &ManualArgs, command: clap::Command) -> Result<ExitCode, Failure> {
    let fail = |cause: std::io::Error| {
        let place = arguments.out.display().to_string();
        InputError::new(
            place,
            format!("cannot be written: {cause}"),
            "free some space, or choose another folder",
        )
    };
    let staged = Staged::new(&arguments.out).map_err(fail)?;
    fill(&staged, command).and_then(|()| staged.publish()).map_err(fail)?;
    eprintln!("wrote {0}/man, {0}/completions and {0}/commands.md", arguments.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes all files beside their places.
fn fill(staged: &Staged, mut command: clap::Command) -> std::io::Result<()> {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        // Into memory first: it panics where a file cannot be written.
        let mut completions = Vec::new();
        clap_complete::generate(shell, &mut command, "tidegate", &mut completions);
        staged.write(Path::new("completions").join(shell.file_name("tidegate")), &completions)?;
    }
    staged.write("commands.md", page(&command).as_bytes())?;
    clap_mangen::generate_to(command, staged.folder("man")?)
}

/// The reference page of all subcommands, docs/commands.md.
pub(super) fn page(command: &clap::Command) -> String {
    let mut page = HEAD.to_owned();
    for inner in described(command) {
        let sockets =
            if <LiveCommand as clap::Subcommand>::has_subcommand(inner.get_name()) { "yes" } else { "" };
        rows(inner, &format!("tidegate {}", inner.get_name()), sockets, &mut page);
    }
    page
}

const HEAD: &str = "# Subcommands and exit codes

*`tidegate manual FOLDER` generates this page, manual pages with every option, and shell completions.*

The option `--help` of each subcommand lists its options and shows an example. Subcommands that open sockets need a
build with the feature `live`, which is on by default.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure, or a check that did not pass (a wrong byte, a digest that differs) |
| 2 | wrong input, or output that cannot be written; the message names the place, the cause and the cure |
| 130 | stopped by Ctrl-C; results so far are kept where the subcommand can resume. Roles on sockets (relay, client, directory) run until they are stopped, and end with 0 |
| 141 | standard output was closed |

| subcommand | what it does | needs `live` |
|---|---|---|
";

fn described(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set())
}

/// Appends a row for each subcommand without subcommands of its own.
fn rows(command: &clap::Command, name: &str, sockets: &str, page: &mut String) {
    if described(command).next().is_none() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(page, "| `{name}` | {about} | {sockets} |").expect("a string accepts every write");
    }
    described(command).for_each(|inner| rows(inner, &format!("{name} {}", inner.get_name()), sockets, page));
}
