//! A relay's keys while it runs: each is renewed in its time, on disk before anybody hears of it.

use std::cell::{Ref, RefCell};
use std::path::PathBuf;

use tidegate_control::units::Span;
use tidegate_proto::crypto::cert::{Certified, Renewal, RouterKeys, Signing};
use tidegate_proto::crypto::lifetimes::KeyLifetimes;
use tidegate_proto::crypto::onion_keys::OnionKey;
use tidegate_proto::crypto::own_keys::OwnKeys;

use super::channel::Links;
use super::keys;
use crate::clock;
use crate::identity::{Identity, fill, random};

/// A relay's keys as it begins with them.
pub struct Keys {
    /// The identity and the onion keys.
    pub router: RouterKeys,
    /// Where they are kept, if anywhere.
    pub file: Option<PathBuf>,
    /// For how long each is used.
    pub lifetimes: KeyLifetimes,
}

impl From<RouterKeys> for Keys {
    /// Kept nowhere, and used as long as tor's.
    fn from(router: RouterKeys) -> Keys {
        Keys { router, file: None, lifetimes: KeyLifetimes::default() }
    }
}

/// What has become of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is another onion key, and the one before answers for a while.
    Onion,
    /// The onion key before answers no longer.
    Forgotten,
    /// There is another signing key, and what it certifies.
    Signing,
    /// There is another TLS key.
    Link,
    /// Keys that are due stay as they are for now, and why.
    Failed(String),
}

/// The calendar is looked at so often, whatever is due: it may be put right, and machines sleep.
const LOOK: Span = Span::from_secs(3600);
/// When what failed is tried again.
const AGAIN: Span = Span::from_secs(600);

/// A running relay's keys.
pub struct Renewed {
    router: RefCell<RouterKeys>,
    file: Option<PathBuf>,
    lifetimes: KeyLifetimes,
    /// TLS has an RSA key, as stock tor wants it, whose signature costs half a millisecond for each connection.
    rsa: bool,
}

/// Draws a key while others go on: RSA's take their time.
async fn drawn<T: Send + 'static>(draw: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(draw).await.expect("drawing a key does not panic")
}

impl Renewed {
    /// These, with RSA keys for TLS or shorter ones.
    pub fn new(keys: Keys, rsa: bool) -> Renewed {
        let Keys { router, file, lifetimes } = keys;
        Renewed { router: RefCell::new(router), file, lifetimes, rsa }
    }

    /// The identity and the onion keys as they are now.
    pub fn router(&self) -> Ref<'_, RouterKeys> {
        self.router.borrow()
    }

    /// What circuits' handshakes are answered with now.
    pub fn own(&self) -> OwnKeys {
        let router = self.router();
        let [secret, _] = router.onion_keys().current().ntor();
        let previous = router.onion_keys().previous().map(|(secret, _)| secret);
        OwnKeys::new(router.fingerprint(), router.ed25519(), secret, previous)
    }

    /// A fresh TLS key, and everyday keys for it: under this signing key, or a fresh one.
    pub async fn everyday(&self, signing: Option<Signing>) -> (Identity, Certified) {
        let identity = if self.rsa { drawn(Identity::for_links).await } else { Identity::generate() };
        let [signing_until, link_until] = self.lifetimes.certified(clock::unix());
        let signing = signing.unwrap_or_else(|| Signing::new(random(), signing_until));
        let certified = self.router().certify(signing, link_until, identity.certificate(), random());
        (identity, certified)
    }

    /// Brings the onion keys up to date, on disk first; what has changed that others should know.
    pub async fn renew_onion(&self) -> Option<Change> {
        let now = clock::unix();
        let wanted = self.router().onion_keys().wants_successor(now, &self.lifetimes);
        let fresh = if wanted { Some(drawn(|| OnionKey::generate(&mut fill)).await) } else { None };
        let mut router = self.router.borrow_mut();
        let before = router.onion_keys();
        let next = before.advanced(now, &self.lifetimes, fresh)?;
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

    /// Certifies other everyday keys, which connections are shown from now on.
    async fn renew_everyday(&self, links: &Links, which: Renewal) -> Change {
        let signing = links.certified().filter(|_| which == Renewal::Link).map(|old| old.signing().clone());
        let (identity, certified) = self.everyday(signing).await;
        match (links.show(certified, &identity), which) {
            (Err(cause), _) => Change::Failed(cause.to_string()),
            (Ok(()), Renewal::Signing) => Change::Signing,
            (Ok(()), Renewal::Link) => Change::Link,
        }
    }

    /// Renews keys in their time until dropped.
    pub async fn run(&self, links: &Links, on_change: impl Fn(Change)) {
        loop {
            let now = clock::unix();
            let onion = self.router().onion_keys().next_change(&self.lifetimes);
            let certified = links.certified().expect("a relay has keys");
            let (everyday, which) = certified.renewal(&self.lifetimes);
            let change = if now >= onion {
                self.renew_onion().await
            } else if now >= everyday {
                Some(self.renew_everyday(links, which).await)
            } else {
                let pause = Span::from_secs(onion.min(everyday) - now);
                clock::until(clock::now() + pause.min(LOOK)).await;
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
