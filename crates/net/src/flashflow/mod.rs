//! FlashFlow's roles on sockets: tokio and TLS under the machines of `proto::flashflow`.

pub mod background;
pub mod capacity;
pub mod config;
pub mod coordinator;
pub mod daemon;
pub mod delay;
mod hold;
pub mod ledger;
mod limits;
mod listed;
pub mod measured;
pub mod measurer;
pub mod network;
pub mod plan;
pub(crate) mod publish;
pub mod record;
pub mod relay;
pub mod shared;
pub mod status;
pub(crate) mod stock;
pub mod store;
mod tor_control;
