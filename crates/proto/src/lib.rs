//! The onion overlay as sans-IO state machines.
