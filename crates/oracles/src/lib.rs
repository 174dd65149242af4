//! Tests that hold Tidegate against independent implementations: tor-netdoc, the kernel's TCP.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod kernel_tcp;
