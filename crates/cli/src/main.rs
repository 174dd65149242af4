//! `tidegate`: simulate, measure and run traffic control for onion-routed overlays.

fn main() {}
