//! The lab's interface to its caller: clock, progress display, interruption.

/// The caller's clock, progress display and stop request.
///
/// The defaults suit a caller that does not watch: one core, no display, no interruption, clocks that stay at 0.
pub trait Monitor: Sync {
    /// Number of threads to use.
    fn jobs(&self) -> usize {
        1
    }
    /// Shows progress: the piece of work, its state, and the share that is done, from 0 to 1.
    fn progress(&self, _work: &str, _state: &str, _done: f64) {}
    /// Shows a notice: input that was accepted but that the user should look at.
    fn notice(&self, _text: &str) {}
    /// Whether the user asked to stop.
    fn stopped(&self) -> bool {
        false
    }
    /// Wall-clock seconds since a fixed moment.
    fn wall_s(&self) -> f64 {
        0.0
    }
    /// The current date and time, in Unix seconds.
    fn unix_s(&self) -> u64 {
        0
    }
    /// Processor seconds of the calling thread.
    fn cpu_s(&self) -> f64 {
        0.0
    }
}
