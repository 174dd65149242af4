//! Notes how long this process does not run. A virtual machine may be paused for seconds.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate_control::units::{Span, Time};
use tidegate_net::clock;

/// How often the watch looks at the clock. Lateness below [`NOISE`] does not count as a pause.
const EVERY: Span = Span::from_millis(10);
const NOISE: Span = Span::from_millis(20);

struct Seen {
    last: Time,
    lost: Span,
}

impl Seen {
    /// Adds the pause since the last look.
    fn look(&mut self) {
        let now = clock::now();
        let late = now.since(self.last + EVERY);
        if late > NOISE {
            self.lost = self.lost + late;
        }
        self.last = now;
    }
}

/// Measures pauses on its own thread until dropped.
pub struct Pauses(Arc<Mutex<Seen>>);

impl Pauses {
    pub fn watch() -> Pauses {
        let seen = Arc::new(Mutex::new(Seen { last: clock::now(), lost: Span::ZERO }));
        let watched: Weak<Mutex<Seen>> = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            while let Some(seen) = watched.upgrade() {
                seen.lock().unwrap().look();
                drop(seen);
                std::thread::sleep(Duration::from_nanos(EVERY.0));
            }
        });
        Pauses(seen)
    }

    /// The sum of all pauses since [`Pauses::watch`].
    pub fn lost(&self) -> Span {
        let mut seen = self.0.lock().unwrap();
        // The thread may not have run since the last pause.
        seen.look();
        seen.lost
    }
}
