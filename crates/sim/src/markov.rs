//! tgen's Markov models.

/// A model.
#[derive(Clone, Debug, Default)]
pub struct Model {}
