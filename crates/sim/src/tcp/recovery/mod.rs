//! Acknowledgements and what they reveal: loss detection by time (RACK-TLP, RFC 8985), proportional rate
//! reduction (RFC 6937), timeouts with detection of spurious ones (F-RTO, RFC 5682; Eifel, RFC 4015), as
//! Linux combines them.

mod acks;
mod reduction;
mod state;
mod timers;

pub(super) use state::{Phase, Recovery};
