//! Tests of Tidegate against independent implementations: tor-netdoc and the kernel's TCP.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod kernel_tcp;
