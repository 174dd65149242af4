//! The measurement circuit of a lying relay, which decrypts honestly but returns cells when it gains by it.
//!
//! See [`tidegate_proto::flashflow::hold`].

use std::cell::RefCell;
use std::io;

use tidegate_control::units::Span;
use tidegate_proto::flashflow::RelayEnd;
use tidegate_proto::flashflow::cell::CellBuffer;
use tidegate_proto::flashflow::load::BATCH;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{clock, link};

/// Interval between attempts to return cells.
const STEP: Span = Span::from_millis(5);

/// Answers echo cells, holding some back.
///
/// `decrypt` waits for leave to decrypt a part of the given bytes. `release` says how many of the given
/// decrypted bytes to return now. The measurer's window of unanswered cells bounds what is held back.
pub(crate) async fn echo(
    stream: impl AsyncRead + AsyncWrite,
    mut end: RelayEnd,
    decrypt: impl AsyncFn(u64) -> Option<u64>,
    mut release: impl FnMut(u64) -> u64,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let kept: RefCell<Vec<u8>> = RefCell::default();
    let reading = async {
        let mut buffer = CellBuffer::new(BATCH);
        loop {
            match link::read_some(&mut reader, buffer.space()).await? {
                0 => return Ok(()),
                count => buffer.filled(count),
            }
            // The rate limits decrypting, the scarce resource that the relay lies about.
            let mut cells = buffer.cells();
            while !cells.is_empty() {
                let Some(leave) = decrypt(cells.len() as u64).await else { return Ok(()) };
                let (now, later) = cells.split_at_mut(leave as usize);
                end.answer(now).map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
                kept.borrow_mut().extend_from_slice(now);
                cells = later;
            }
            buffer.consume();
        }
    };
    let writing = async {
        loop {
            clock::until(clock::now() + STEP).await;
            let bytes = release(kept.borrow().len() as u64);
            if bytes > 0 {
                let cells: Vec<u8> = kept.borrow_mut().drain(..bytes as usize).collect();
                link::write_cells(&mut writer, &cells).await?;
            }
        }
    };
    tokio::select! {
        result = reading => result,
        result = writing => result,
    }
}
