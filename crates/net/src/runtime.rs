//! Entry points return boxed futures, so that the hot path is compiled in this crate, under its optimisation level.

use std::io;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// A running role. It runs until dropped, or until it ends.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// Runs a role on this thread until it ends. The role may spawn local tasks.
///
/// # Errors
/// If the runtime cannot be created.
pub fn on_this_thread(role: Pin<&mut dyn Future<Output = ()>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // A local set polls its own future whenever any of its tasks wakes. This one polls the role, with its many branches,
    // only when the role itself wakes.
    let mut role = FuturesUnordered::from_iter([role]);
    runtime.block_on(LocalSet::new().run_until(role.next()));
    Ok(())
}
