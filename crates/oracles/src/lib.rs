//! Tests that hold Tidegate against independent implementations: tor-netdoc, the kernel's TCP.

pub mod comparison;
pub mod kernel_tcp;
