//! Renewal of a running relay's keys. New keys are on disk before they are used.

use std::cell::{Cell, Ref, RefCell};
use std::path::PathBuf;

use tidegate_control::units::Span;
use tidegate_proto::crypto::cert::{Certified, Renewal, RouterKeys, Signing};
use tidegate_proto::crypto::{KeyLifetimes, OnionKey, OwnKeys};

use tokio::sync::Notify;

use super::channel::Links;
use super::keys;
use crate::clock;
use crate::identity::{Identity, fill, random};

/// A relay's keys at its start.
pub struct Keys {
    /// Identity and onion keys.
    pub router: RouterKeys,
    /// The key file, if they are stored.
    pub file: Option<PathBuf>,
    /// How long each key is used.
    pub lifetimes: KeyLifetimes,
}

impl From<RouterKeys> for Keys {
    /// Keys without a file, with tor's lifetimes.
    fn from(router: RouterKeys) -> Keys {
        Keys { router, file: None, lifetimes: KeyLifetimes::default() }
    }
}

/// A change of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new onion key. The previous one is accepted for a while.
    Onion,
    /// The previous onion key has expired.
    Forgotten,
    /// A new signing key, and what it certifies.
    Signing,
    /// A new TLS key.
    Link,
    /// A renewal failed, and why. The old keys stay in use.
    Failed(String),
}

/// Maximum sleep: the system clock may be corrected, or the machine may sleep.
const LOOK: Span = Span::from_secs(3600);
/// Pause after a failed renewal.
const AGAIN: Span = Span::from_secs(600);

/// A running relay's keys.
pub(crate) struct Renewed {
    router: RefCell<RouterKeys>,
    file: Option<PathBuf>,
    lifetimes: Cell<KeyLifetimes>,
    /// Use RSA for TLS, as stock tor requires. A signature costs 0.5 ms per connection.
    rsa: Cell<bool>,
    /// The kind of the TLS key has changed.
    rekeys: Cell<bool>,
    /// Wakes the renewal after a change.
    changed: Notify,
}

/// Generates a key on a blocking thread: RSA takes long.
async fn drawn<T: Send + 'static>(draw: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(draw).await.expect("key generation does not panic")
}

impl Renewed {
    /// `rsa`: whether TLS uses an RSA key.
    pub(crate) fn new(keys: Keys, rsa: bool) -> Renewed {
        let Keys { router, file, lifetimes } = keys;
        let (lifetimes, rsa) = (Cell::new(lifetimes), Cell::new(rsa));
        let (rekeys, changed) = (Cell::new(false), Notify::new());
        Renewed { router: RefCell::new(router), file, lifetimes, rsa, rekeys, changed }
    }

    /// Changes the lifetimes of keys, and whether TLS uses an RSA key.
    pub(crate) fn reload(&self, lifetimes: KeyLifetimes, rsa: bool) {
        self.lifetimes.set(lifetimes);
        self.rekeys.set(self.rekeys.get() || self.rsa.replace(rsa) != rsa);
        self.changed.notify_one();
    }

    /// The file for the relay's history, beside the key file, if there is one.
    pub(crate) fn history_file(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        let mut name = file.file_name()?.to_owned();
        name.push(".history");
        Some(file.with_file_name(name))
    }

    /// The current identity and onion keys.
    pub(crate) fn router(&self) -> Ref<'_, RouterKeys> {
        self.router.borrow()
    }

    /// The keys that answer circuit handshakes now.
    pub(crate) fn own(&self) -> OwnKeys {
        let router = self.router();
        let [secret, _] = router.onion_keys().current().ntor();
        let previous = router.onion_keys().previous().map(|(secret, _)| secret);
        OwnKeys::new(router.fingerprint(), router.ed25519(), secret, previous)
    }

    /// A new TLS key, and everyday keys for it, under `signing` or a new signing key.
    pub(crate) async fn everyday(&self, signing: Option<Signing>) -> (Identity, Certified) {
        let identity = if self.rsa.get() { drawn(Identity::for_links).await } else { Identity::generate() };
        let [signing_until, link_until] = self.lifetimes.get().certified(clock::unix());
        let signing = signing.unwrap_or_else(|| Signing::new(random(), signing_until));
        let certified = self.router().certify(signing, link_until, identity.certificate(), random());
        (identity, certified)
    }

    /// Renews the onion keys if they are due, on disk first. Returns the change.
    pub(crate) async fn renew_onion(&self) -> Option<Change> {
        let now = clock::unix();
        let wanted = self.router().onion_keys().wants_successor(now, &self.lifetimes.get());
        let fresh = if wanted { Some(drawn(|| OnionKey::generate(&mut fill)).await) } else { None };
        let mut router = self.router.borrow_mut();
        let before = router.onion_keys();
        let next = before.advanced(now, &self.lifetimes.get(), fresh)?;
        let forgotten = before.previous().is_some() && next.previous().is_none();
        if let Some(path) = &self.file
            && let Err(why) = keys::replace(path, &router, &next)
        {
            return Some(Change::Failed(format!("{} {why}", path.display())));
        }
        router.set_onion_keys(next);
        match (wanted, forgotten) {
            (true, _) => Some(Change::Onion),
            (false, true) => Some(Change::Forgotten),
            (false, false) => None,
        }
    }

    /// Certifies new everyday keys for new connections.
    async fn renew_everyday(&self, links: &Links, which: Renewal) -> Change {
        let signing = links.certified().filter(|_| which == Renewal::Link).map(|old| old.signing().clone());
        let (identity, certified) = self.everyday(signing).await;
        match (links.show(certified, &identity), which) {
            (Err(cause), _) => Change::Failed(cause.to_string()),
            (Ok(()), Renewal::Signing) => Change::Signing,
            (Ok(()), Renewal::Link) => Change::Link,
        }
    }

    /// Renews keys when they are due, until dropped.
    pub(crate) async fn run(&self, links: &Links, on_change: impl Fn(Change)) {
        loop {
            let (now, lifetimes) = (clock::unix(), self.lifetimes.get());
            let onion = self.router().onion_keys().next_change(&lifetimes);
            let certified = links.certified().expect("a relay has keys");
            let (everyday, which) = certified.renewal(&lifetimes);
            let change = if self.rekeys.take() {
                Some(self.renew_everyday(links, Renewal::Link).await)
            } else if now >= onion {
                self.renew_onion().await
            } else if now >= everyday {
                Some(self.renew_everyday(links, which).await)
            } else {
                let pause = Span::from_secs(onion.min(everyday) - now);
                tokio::select! {
                    () = clock::until(clock::now() + pause.min(LOOK)) => {}
                    () = self.changed.notified() => {}
                }
                continue;
            };
            let failed = matches!(change, Some(Change::Failed(_)));
            change.into_iter().for_each(&on_change);
            if failed {
                clock::until(clock::now() + AGAIN).await;
            }
        }
    }
}
