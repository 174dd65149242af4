//! Q-Stream on sockets: the machines of [`tidegate_stream`] over QUIC (datagrams and one stream to the server).
//!
//! * [`path`]: the socket below QUIC, with an uplink's rate, a delay and losses where a test wants them.
//! * [`quic`]: how connections are made and who they are with. [`carrier`]: connections by peer.
//! * [`input`]: where the stream comes from. [`server`] and [`viewer`]: the loops.
//! * [`hls`]: segments for browsers. [`pages`]: what is shown over HTTP.

pub mod carrier;
pub mod hls;
pub mod input;
pub mod pages;
pub mod path;
pub mod quic;
pub mod server;
pub mod viewer;
