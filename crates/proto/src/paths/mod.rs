//! Path selection, sans-IO: simulated users and live clients use the same types.
//!
//! A [`Directory`] lists the relays as clients know them, with their weights. It does not contain capacities, which
//! belong to links, rate limits and processors. A [`Policy`], a part of the system under test, turns it into
//! [`Candidates`]: relays per position, with weights. A [`Selector`] draws whole paths from these under the system's
//! [`PathSelection`]. Some policies also compare several paths before a client uses one ([`Comparison`]). Each client remembers its guard and its [`BuildTimes`].
//!
//! ```
//! use tidegate_control::positions::Class;
//! use tidegate_control::random::Seed;
//! use tidegate_control::units::Span;
//! use tidegate_proto::cell::RelayId;
//! use tidegate_proto::paths::{BuildTimes, Directory, PathSelection, RelayEntry, Selector};
//!
//! let relay = |number| RelayEntry {
//!     name: format!("relay{number}"),
//!     class: Class::GuardExit,
//!     weight: 100.0,
//!     ..RelayEntry::new(RelayId(number))
//! };
//! let directory = Directory { relays: (0..9).map(relay).collect(), positions: None };
//! let selector = Selector::new(&directory, &PathSelection::default())?;
//! let (mut random, mut guard) = (Seed::root(1).random(), None);
//! let first = selector.draw(&mut random, &mut guard);
//! let second = selector.draw(&mut random, &mut guard);
//! assert_eq!(first[0], second[0], "the guard is kept");
//! assert!(second[0] != second[1] && second[1] != second[2] && second[0] != second[2]);
//!
//! let mut times = BuildTimes::default();
//! times.built(Span::from_millis(400));
//! assert_eq!(times.timeout(), Span::from_secs(60), "nothing is learnt from one circuit");
//! # Ok::<(), tidegate_proto::paths::NoCandidate>(())
//! ```

mod bandwidth_file;
mod build_times;
pub mod congestion_aware;
pub mod latency_aware;
mod pinned;
mod policy;
mod selector;
mod tor;
mod uniform;

pub use bandwidth_file::BandwidthFile;
pub use build_times::BuildTimes;
pub use congestion_aware::CongestionAware;
pub use latency_aware::LatencyAware;
pub use pinned::Pinned;
pub use policy::{Candidates, Comparison, Directory, Known, Policy, RelayEntry};
pub use selector::{BuildTimeout, NoCandidate, PathSelection, Selector, draw};
pub use tor::Tor;
pub use uniform::Uniform;
