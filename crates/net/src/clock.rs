//! The clocks: a monotonic one that machines are told of, and the calendar for files.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_control::units::Time;

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "the edge of the tool: machines get what is read here")]
    *START.get_or_init(Instant::now)
}

/// Monotonic time since the first call in this process.
pub fn now() -> Time {
    let start = start();
    Time(start.elapsed().as_nanos() as u64)
}

/// Waits until that time; for ever if it is [`Time::NEVER`].
pub async fn until(time: Time) {
    match start().checked_add(Duration::from_nanos(time.0)) {
        Some(instant) if time != Time::NEVER => tokio::time::sleep_until(instant.into()).await,
        _ => std::future::pending().await,
    }
}

/// Seconds since 1970, for what is written into files. Never used to order events or to measure spans.
pub fn unix() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the edge of the tool: files name calendar times")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
