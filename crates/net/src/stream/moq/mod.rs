//! Media over QUIC: publishers feed the server, and subscribers read from a viewer.
//!
//! A stream is one broadcast with one track. A group is a segment of [`hls`](super::hls), so decoding can begin with each
//! group; its frames are the segment's packets as they are played. The crate `moq-net` speaks moq-lite and the drafts 14
//! to 22 of moq-transport, over WebTransport and QUIC. Without the feature `moq`, both edges report that it is missing.

#[cfg(feature = "moq")]
mod certificates;
mod edge;
#[cfg(feature = "moq")]
mod endpoint;
#[cfg(not(feature = "moq"))]
mod missing;
#[cfg(feature = "moq")]
mod publisher;
#[cfg(feature = "moq")]
mod subscribers;

pub(crate) use edge::Advertised;
pub use edge::{BROADCAST, Edge, IS_BUILT, Lifetimes, Renewal, TRACK};
#[cfg(not(feature = "moq"))]
pub(crate) use missing::read;
#[cfg(not(feature = "moq"))]
pub use missing::serve;
#[cfg(feature = "moq")]
pub(crate) use publisher::read;
#[cfg(feature = "moq")]
pub use subscribers::serve;
