//! `tidegate overlay tornet --soak`: hours of mixed load on Tidegate relays of a private Tor network.
//!
//! Users of stock clients download from exits and from a stock onion service, while strangers hold connections to a relay.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tidegate_control::units::Span;
use tidegate_kernel::memory_of;
use tidegate_net::clock;
use tidegate_net::private_tor::Network;

use super::crowd::Crowd;
use super::download::{Origin, fetch};
use super::onion_service;
use super::tor_client::start_client;
use crate::failure::Failure;
use crate::stage::Stage;

/// Users of each kind, the bytes of a download, and a user's pause between downloads.
const USERS: u16 = 4;
const BYTES: u64 = 500_000;
const THINK: Duration = Duration::from_millis(500);
/// Downloads after which a user takes another name. Tor then builds new circuits, and lets the old ones expire.
const DOWNLOADS_PER_NAME: usize = 100;
/// Hostile connections that are open at a time, and new ones per second.
const STRANGERS: (usize, u32) = (300, 20);
/// Allowed growth of a relay's memory in the second half (allocators keep some memory).
const GROWTH: f64 = 0.1;

/// The Tidegate relays under load.
pub struct Relays {
    /// Their process ids.
    pub processes: Vec<u32>,
    /// Address of the one that strangers attack.
    pub attacked: SocketAddr,
}

/// State of all users.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    exact: AtomicU64,
    /// Downloads with bytes that were not sent.
    wrong: AtomicU64,
    /// Downloads that ended early or could not begin, by cause.
    broken: Mutex<BTreeMap<String, u64>>,
}

/// Loads the relays. The exit code is 1 if a byte was wrong, a download broke, a relay grew, or tor warns.
pub fn main(
    stage: &Stage,
    network: &mut Network,
    relays: &Relays,
    file: SocketAddr,
    (duration, json): (Span, bool),
) -> Result<ExitCode, Failure> {
    let onion = onion_service::start(stage, network, file)?;
    let socks = start_client(stage, network, "client", None, onion_service::ONLY_OURS)?;
    // Until the service has published its descriptor, the client's tor refuses.
    onion_service::download(stage, socks, &onion, (1, 1), 1)?;
    let crowd = Crowd::gather(relays.attacked, STRANGERS.0, STRANGERS.1);
    let shared = Arc::new(Shared::default());
    let origins = [Origin::At(file), onion_service::origin(&onion)];
    let users = origins.iter().flat_map(|origin| (0..USERS).map(move |user| (user, origin.clone())));
    let users: Vec<_> = users
        .zip(0u16..)
        .map(|((_, origin), user)| {
            let shared = shared.clone();
            thread::spawn(move || shared.download(user, socks, &origin))
        })
        .collect();
    let begun = clock::now();
    let wait = |end| {
        while clock::now() < end && !stage.is_stopped() {
            thread::sleep(Duration::from_millis(50));
        }
    };
    let memory = || -> Vec<f64> {
        // A relay that has ended counts as 0 bytes; its downloads break.
        relays.processes.iter().map(|process| memory_of(*process).map_or(0.0, |bytes| bytes as f64)).collect()
    };
    wait(begun + Span(duration.0 / 2));
    let half = memory();
    wait(begun + duration);
    let end = memory();
    shared.over.store(true, Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().expect("user threads do not panic"));
    let strangers = crowd.disperse()?;

    let growth = end.iter().zip(&half).map(|(end, half)| end / half - 1.0).fold(f64::MIN, f64::max);
    let [exact, wrong] = [&shared.exact, &shared.wrong].map(|count| count.load(Ordering::Relaxed));
    let causes = shared.broken.lock().unwrap_or_else(PoisonError::into_inner);
    let broken: u64 = causes.values().sum();
    let (warnings, seconds) = (network.warnings(), clock::now().since(begun).as_secs_f64());
    let fine = wrong == 0 && broken == 0 && exact > 0 && growth <= GROWTH && warnings.is_empty();
    if json {
        let largest = end.iter().copied().fold(0.0, f64::max);
        println!(
            "{}",
            json!({ "seconds": seconds, "exact": exact, "wrong": wrong, "broken": broken, "causes": *causes, "strangers": strangers,
                "growth": growth, "largest_relay_bytes": largest, "warned": warnings.len(), "warnings": warnings, "fine": fine })
        );
    } else {
        println!(
            "fetched   {exact} times {BYTES} bytes as sent, {wrong} wrong, {broken} broken, in {seconds:.0} s"
        );
        println!("strangers {strangers} connections");
        println!("memory    a relay grew by {:.1} % in the second half", 100.0 * growth);
        causes.iter().for_each(|(cause, times)| println!("broken    {times} times: {cause}"));
        warnings.iter().for_each(|line| println!("tor says  {line}"));
    }
    Ok(ExitCode::from(u8::from(!fine)))
}

impl Shared {
    /// Repeats downloads as one user, who takes the next free name of `user..` from time to time.
    fn download(&self, user: u16, socks: SocketAddr, origin: &Origin) {
        // Two kinds of users.
        let names = (user..u16::MAX).step_by(2 * usize::from(USERS)).cycle();
        for name in names.flat_map(|name| [name; DOWNLOADS_PER_NAME]) {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            match fetch(name, socks, origin.clone(), BYTES) {
                Ok(download) if download.exact() => drop(self.exact.fetch_add(1, Ordering::Relaxed)),
                Ok(download) if !download.right => drop(self.wrong.fetch_add(1, Ordering::Relaxed)),
                Ok(_) => self.count("the stream ended before the last byte".into()),
                Err(error) => self.count(error.to_string()),
            }
            thread::sleep(THINK);
        }
    }

    /// Counts a broken download.
    fn count(&self, cause: String) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner).entry(cause).or_default() += 1;
    }
}
