//! Tests of Tidegate against independent implementations: stem, moq-net and the kernel's TCP.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod kernel_tcp;
