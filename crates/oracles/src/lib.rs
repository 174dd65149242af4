//! Tests of Tidegate against independent implementations: tor-netdoc, moq-net and the kernel's TCP.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod kernel_tcp;
