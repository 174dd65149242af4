//! Q-Stream on sockets: the machines of [`tidegate_stream`] over QUIC (datagrams, and one stream to the server).
//!
//! * [`path`]: the socket below QUIC; tests add an uplink rate, delay and losses.
//! * [`quic`]: QUIC connections and their authentication. `carrier`: connections by peer.
//! * [`input`]: sources of a stream. [`server`] and [`viewer`]: the roles' event loops.
//! * [`hls`]: segments for browsers. [`pages`]: HTTP pages. [`moq`]: Media over QUIC.

mod carrier;
pub mod hls;
pub mod input;
pub mod moq;
pub mod pages;
pub mod path;
pub(crate) mod quic;
pub mod server;
pub mod viewer;
