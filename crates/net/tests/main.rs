//! Integration tests of this crate: one binary, so that the crate is linked once.

mod a_relay;
mod attacks;
mod closing;
mod dashboard;
mod defences;
mod documents;
mod faults;
mod flashflow;
mod hls;
mod ipv6;
mod keys;
mod keys_tor;
mod limits;
mod link_padding;
mod live;
mod loopback;
mod more;
mod more_streams;
mod one_hop;
mod pauses;
mod pctcp;
mod quic;
mod reload;
mod restart;
mod self_test;
mod server;
mod shards;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod stock_relay;
mod storms;
mod stream_rates;
mod stream_rates_tor;
