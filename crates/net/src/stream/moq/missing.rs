//! Stand-ins of builds without Media over QUIC.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::edge::{Edge, Lifetimes, Renewal};
use crate::stream::viewer::Screen;

fn missing() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no Media over QUIC; build with `cargo build --release --features moq`",
    )
}

/// Reports that this build lacks Media over QUIC.
///
/// # Errors
/// Always.
pub fn serve(
    _: SocketAddr,
    _: &Arc<Screen>,
    _: Lifetimes,
    _: impl Fn(Renewal) + 'static,
) -> io::Result<Edge> {
    Err(missing())
}

pub(crate) async fn read(
    _: SocketAddr,
    _: &mpsc::Sender<Bytes>,
    _: impl Fn(String) + Sync,
) -> io::Result<()> {
    Err(missing())
}
