//! What the lab asks of the edge: clock, terminal, interruption.

/// The edge that owns the clock, the terminal and the wish to stop. What an edge leaves out is as where nobody watches:
/// one core, nothing shown, nobody stops it, and clocks that stand at 0.
pub trait Monitor: Sync {
    /// Cores to use.
    fn jobs(&self) -> usize {
        1
    }
    /// Something to show: which piece of work, how it stands, and how much of it is done, in 0..=1.
    fn progress(&self, _work: &str, _state: &str, _done: f64) {}
    /// Something that the user should change, though it was accepted.
    fn notice(&self, _text: &str) {}
    /// True once the user wants to stop.
    fn stopped(&self) -> bool {
        false
    }
    /// Wall-clock seconds since some fixed moment.
    fn wall_s(&self) -> f64 {
        0.0
    }
    /// What a calendar says, in Unix seconds.
    fn unix_s(&self) -> u64 {
        0
    }
    /// Processor seconds of the calling thread.
    fn cpu_s(&self) -> f64 {
        0.0
    }
}
