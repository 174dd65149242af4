//! Entry points return boxed futures, so that the hot path is compiled in this crate, under its optimisation level.

use std::io;
use std::pin::Pin;

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
    runtime.block_on(LocalSet::new().run_until(role));
    Ok(())
}
