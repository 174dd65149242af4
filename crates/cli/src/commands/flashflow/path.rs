//! What stands for the distance between two roles on one machine.

use tidegate_control::units::{Span, UnitError};
use tidegate_net::flashflow::delay;

/// How far apart two roles are.
#[derive(clap::Args)]
pub struct PathArguments {
    /// How far measurers and relay are apart, one way: at most 10 s
    #[arg(long, default_value = "0 s", value_parser = way)]
    pub delay: Span,
    /// What is added to it, differently for every piece read: the positive half of a normal distribution of this
    /// standard deviation; nothing overtakes
    #[arg(long, default_value = "0 s", value_parser = way)]
    pub jitter: Span,
    /// Of the jitter
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn way(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: UnitError| error.to_string())?;
    if span > delay::LONGEST { Err(format!("give at most {}", delay::LONGEST)) } else { Ok(span) }
}
