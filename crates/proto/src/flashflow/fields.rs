//! The fields of messages in a cell, in big-endian order.

use std::fmt;

use super::cell::CELL;

/// A cell that is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// Not a MEASUREMENT cell on circuit 0.
    NotAMessage,
    /// A command this version does not know.
    UnknownCommand(u8),
    /// A field outside its range.
    Field(&'static str),
    /// Something other than zeros after the last field.
    Trailing,
    /// Fields that do not fit into a cell.
    TooLong,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::NotAMessage => f.write_str("not a MEASUREMENT cell on circuit 0"),
            MessageError::UnknownCommand(command) => write!(f, "unknown measurement command {command}"),
            MessageError::Field(field) => write!(f, "field {field} is out of range"),
            MessageError::Trailing => f.write_str("bytes follow the last field"),
            MessageError::TooLong => f.write_str("the message does not fit into a cell"),
        }
    }
}

impl std::error::Error for MessageError {}

/// Fields, one after another, into a cell.
pub struct Writer {
    pub cell: [u8; CELL],
    pub at: usize,
}

impl Writer {
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let end = self.at + bytes.len();
        self.cell.get_mut(self.at..end).ok_or(MessageError::TooLong)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }
}

/// Fields, one after another, out of a cell.
pub struct Reader<'a> {
    pub left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], MessageError> {
        let (taken, left) = self.left.split_at_checked(n).ok_or(MessageError::TooLong)?;
        self.left = left;
        Ok(taken)
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        Ok(self.take(N)?.try_into().expect("as long as asked for"))
    }
    pub fn u8(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16, MessageError> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64, MessageError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}
