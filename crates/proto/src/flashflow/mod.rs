//! FlashFlow's roles without their sockets: a coordinator has measurers load a relay and adds up what
//! comes back (Traudt, Jansen, Johnson 2021, section 4.1; Tor proposal 316; `docs/flashflow.md` says what we
//! decided where they leave things open).
//!
//! A measurement in the order of its messages ([`message`]): coordinator -> relay `Params`; relay ->
//! coordinator `ParamsOk`; coordinator -> measurers `Open`; each opens its circuits to the relay
//! ([`cell::CREATE_MEASUREMENT`]) and says `Ready`; coordinator -> measurers `Go`; echo cells ([`echo`]) run
//! for the agreed seconds while measurers say `Count` and the relay says `Background` each second.
//!
//! [`coordinator`], [`measurer`] and [`relay`] are the three machines. [`load`] is how fast a measurer sends,
//! [`pace`] the relay's scheduler for what it forwards meanwhile. [`delay_line`] is a path between them where the
//! kernel has none, [`hold`] a relay that lies.

pub mod cell;
pub mod coordinator;
pub mod delay_line;
pub mod echo;
pub mod hold;
pub mod load;
pub mod measurer;
pub mod message;
pub mod pace;
pub mod probe;
pub mod relay;
