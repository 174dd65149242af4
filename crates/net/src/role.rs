//! Roles on sockets as they are run: behind pointers, so that what moves cells is compiled with this crate, as quick as
//! this crate is to be, and not once more with whoever runs it.

use std::io;
use std::pin::Pin;

use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// A role that runs until dropped, or until it has come to its end.
pub type Running<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// Runs a role on this thread until it ends. It may spawn local tasks.
///
/// # Errors
/// If the system has no more of what an event loop needs.
pub fn on_this_thread(role: Pin<&mut dyn Future<Output = ()>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(role));
    Ok(())
}
