//! Arguments and configuration files that several subcommands share.

use std::path::Path;

use tidegate_control::units::{Span, UnitError};
use tidegate_lab::input::InputError;
use tidegate_net::flashflow::{ConfigFile, LEAST_SECONDS, delay};
use tidegate_proto::flashflow::MAX_SECONDS;

use crate::failure::Failure;

/// An emulated path.
#[derive(clap::Args)]
pub struct PathArguments {
    /// One-way delay between measurers and relay, at most 10 s
    #[arg(long, default_value = "0 s", value_parser = path_span)]
    pub delay: Span,
    /// Jitter: the positive half of a normal distribution with this standard deviation, added to the delay of
    /// each read; bytes stay in order
    #[arg(long, default_value = "0 s", value_parser = path_span)]
    pub jitter: Span,
    /// Seed of the jitter
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Parses a delay or jitter, which has an upper limit.
fn path_span(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: UnitError| error.to_string())?;
    if span > delay::LONGEST { Err(format!("give at most {}", delay::LONGEST)) } else { Ok(span) }
}

/// Parses the length of a measurement.
pub fn measured_for(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: UnitError| error.to_string())?;
    let longest = u64::from(MAX_SECONDS);
    match span.whole_secs() {
        Some(seconds) if (LEAST_SECONDS..=longest).contains(&seconds) => Ok(span),
        _ => Err(format!("give whole seconds from {LEAST_SECONDS} s to {}", Span::from_secs(longest))),
    }
}

/// Reads and checks a configuration file.
pub fn read_config<C: ConfigFile>(path: &Path) -> Result<C, Failure> {
    C::load(path).map_err(|error| InputError::new(error.path.display().to_string(), error.cause, "").into())
}
