//! FlashFlow's roles on sockets: tokio and TLS under the machines of `proto::flashflow`.

pub mod background;
pub mod capacity;
mod config;
mod coordinator;
mod daemon;
pub mod delay;
mod hold;
mod ledger;
mod limits;
mod listed;
pub(crate) mod measured;
pub mod measurer;
mod network;
pub mod plan;
pub(crate) mod publish;
mod record;
mod relay;
mod shared;
pub mod status;
pub(crate) mod stock;
pub mod store;
mod tor_control;

pub use config::{
    BackgroundConfig, CapacityConfig, CapacityPeer, ConfigError, ConfigFile, CoordinatorConfig,
    LEAST_SECONDS, MeasurerConfig, RelayConfig, RelayEntry, check_permissions,
};
pub use coordinator::{Unmeasured, measure};
pub use daemon::{Daemon, DaemonError};
pub use ledger::{Ledger, LedgerError};
pub use measured::Forwarded;
pub use network::Network;
pub use record::{Described, Record, RecordedParameters};
pub use relay::{Limits, MeasuredRelay};
pub use shared::{CoordinatorState, network};
