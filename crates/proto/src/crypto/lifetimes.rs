//! Lifetimes of a relay's keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::Span;

const DAY: u64 = 24 * 3600;

/// For how long a relay uses its keys. Its identity stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KeyLifetimes {
    /// An onion key is announced for so long. Source: dir-spec, `onion-key-rotation-days`.
    #[schemars(extend("x-range" = "1 s..=2160 h"))]
    pub onion: Span,
    /// And answers for so long after that, since clients hear of the next one later. Source: dir-spec,
    /// `onion-key-grace-period-days`.
    #[schemars(extend("x-range" = "1 s..=2160 h"))]
    pub onion_grace: Span,
    /// The identity certifies a signing key for so long; the next comes a tenth earlier. Source: tor's `SigningKeyLifetime`.
    #[schemars(extend("x-range" = "1 s..=2160 h"))]
    pub signing: Span,
    /// A signing key certifies a TLS key for so long; the next comes a tenth earlier. Source: tor's `TestingLinkCertLifetime`.
    #[schemars(extend("x-range" = "1 s..=2160 h"))]
    pub link: Span,
}

impl Default for KeyLifetimes {
    fn default() -> KeyLifetimes {
        let days = |days: u64| Span::from_secs(days * DAY);
        KeyLifetimes { onion: days(28), onion_grace: days(7), signing: days(30), link: days(2) }
    }
}

impl Parameters for KeyLifetimes {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        if self.onion_grace > self.onion {
            return Some((
                "`onion-grace` is longer than `onion`: a third key would have to answer, too",
                "tor: onion = \"28 d\", onion-grace = \"7 d\"",
            ));
        }
        (self.link > self.signing).then_some((
            "`link` is longer than `signing`: the TLS key would outlive the key that certifies it",
            "tor: signing = \"30 d\", link = \"2 d\"",
        ))
    }
}

/// A span in whole seconds.
pub(super) fn seconds(span: Span) -> u64 {
    span.0 / 1_000_000_000
}

impl KeyLifetimes {
    /// Expiry of a signing key and of a TLS key that are generated `now`; in seconds since 1970.
    pub fn certified(&self, now: u64) -> [u64; 2] {
        [self.signing, self.link].map(|span| now + seconds(span))
    }
}
