//! FlashFlow's roles as sans-IO machines (Traudt, Jansen, Johnson 2021, section 4.1; Tor proposal 316).
//!
//! A coordinator lets measurers load a relay and adds up what comes back. `docs/flashflow.md` explains our
//! decisions where paper and proposal leave things open.
//!
//! A measurement in the order of its messages (`message`): coordinator -> relay `Params`; relay ->
//! coordinator `ParamsOk`; coordinator -> measurers `Open`; each measurer opens its circuits to the relay
//! ([`cell::CREATE_MEASUREMENT`]) and answers `Ready`; coordinator -> measurers `Go`. Echo cells (`echo`)
//! flow for the agreed seconds, while measurers send `Count` and the relay `Background` every second.
//!
//! [`coordinator`], [`measurer`] and [`relay`] are the three machines. [`load`] paces a measurer, `pace`
//! schedules what the relay forwards. [`delay_line`] emulates a path for kernels without netem, and `hold` is
//! a lying relay.

pub mod cell;
pub mod coordinator;
pub mod delay_line;
mod echo;
mod hold;
pub mod load;
pub mod measurer;
mod message;
mod pace;
pub mod probe;
pub mod relay;

pub use echo::{EchoError, MeasurerEnd, RelayEnd};
pub use hold::Hold;
pub use message::{MAX_MEASURERS, MAX_SECONDS, MeasurerId, Message, MessageError, Open, Params, Reason};
pub use pace::{Class, Grant, Pace};

pub use crate::crypto::cert::Fingerprint;
