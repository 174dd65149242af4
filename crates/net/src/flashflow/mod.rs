//! FlashFlow's roles on sockets: tokio and TLS under the machines of `proto::flashflow`.

pub mod coordinator;
pub mod link;
pub mod measurer;
pub mod relay;
