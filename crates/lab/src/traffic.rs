//! Kinds of traffic: the built-in ones, and the conversion of `[traffic]` tables for the simulator.

use tidegate_control::units::{Bytes, Span};
use tidegate_sim::plan::{RequestPlan, Traffic};

use crate::scenario::quantity::{Between, Size, Timeout};
use crate::scenario::users::{RequestFile, TrafficFile};

/// Names of the built-in kinds.
pub(crate) const BUILT_IN: &[&str] = &["bulk", "web", "benchmark", PRIVCOUNT];

/// The built-in kind that is a Markov model instead of requests.
pub(crate) const PRIVCOUNT: &str = "privcount";

/// A built-in kind of traffic by name.
///
/// - `bulk`: one endless response.
/// - `web`: 320 KiB, then a pause of 1 to 60 s (Jansen et al., CSET 2012, "Methodically modeling the Tor
///   network", section 4.3).
/// - `benchmark`: 50 KiB, 1 MiB and 5 MiB with weights 12:2:1 and timeouts of 15, 60 and 120 s. A request starts
///   every minute on a circuit of its own, even if the previous one is not complete: Tor's own performance
///   clients (Jansen et al., USENIX Security 2021, "Once is never enough", section 3).
/// - `privcount`: traffic of Tor's users as PrivCount measured it, open-loop: users open streams without waiting
///   for earlier ones; streams time out after 120 s.
pub(crate) fn built_in(name: &str) -> Option<TrafficFile> {
    let limited = |kib: u64, weight: f64, seconds: u64| {
        RequestFile::of(Size(kib << 10), weight, Timeout(Span::from_secs(seconds)))
    };
    let seconds = |low: u64, high: u64| Between { low: Span::from_secs(low), high: Span::from_secs(high) };
    Some(match name {
        "bulk" => TrafficFile::of(vec![RequestFile::of(Size::ENDLESS, 1.0, Timeout::NEVER)]),
        "web" => TrafficFile {
            pause: seconds(1, 60),
            ..TrafficFile::of(vec![RequestFile::of(Size(320 << 10), 1.0, Timeout::NEVER)])
        },
        "benchmark" => TrafficFile {
            every: Some(Span::from_secs(60)),
            circuit_lifetime: Span::ZERO,
            ..TrafficFile::of(vec![limited(50, 12.0, 15), limited(1024, 2.0, 60), limited(5120, 1.0, 120)])
        },
        PRIVCOUNT => TrafficFile { timeout: Timeout(Span::from_secs(120)), ..TrafficFile::of(Vec::new()) },
        _ => return None,
    })
}

/// Converts requests for the simulator.
pub(crate) fn fetch(kind: &TrafficFile) -> Traffic {
    let requests = kind.requests.iter().map(|request| RequestPlan {
        bytes: request.size.0,
        weight: request.weight,
        timeout: request.timeout.0,
        request_bytes: u32::try_from(request.request.0).unwrap_or(u32::MAX),
    });
    Traffic::Fetch {
        requests: requests.collect(),
        pause: (kind.pause.low, kind.pause.high),
        every: kind.every,
    }
}

/// Name of a class of transfers in reports: the users' class, and the size if the class has several sizes.
pub(crate) fn class_of(class: &str, sizes: usize, bytes: u64) -> String {
    if sizes < 2 {
        class.to_owned()
    } else {
        format!("{class}-{}", Bytes(bytes).to_string().replace(' ', ""))
    }
}
