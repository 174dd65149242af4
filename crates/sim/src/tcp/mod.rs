//! TCP as byte sequences without payload.

/// Parameters.
#[derive(Clone, Debug, Default)]
pub struct Config {}
