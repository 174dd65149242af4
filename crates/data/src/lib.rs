//! Readers for the documents of the ecosystem.
