//! Settings of a relay on loopback, which tests change where they need to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

use tidegate_net::gate::Gate;
use tidegate_net::live::addresses::Addresses;
use tidegate_net::live::exit::Exit;
use tidegate_net::live::policy::Policy;
use tidegate_net::live::relay::{Announce, RelayConfig};
use tidegate_net::live::renewal::Keys;
use tidegate_proto::links::{Config, Limits};

/// A relay that publishes nothing, is not an exit, has the default limits, and may extend circuits on this machine.
pub fn settings(keys: impl Into<Keys>, address: impl Into<Addresses>) -> RelayConfig {
    RelayConfig {
        nickname: "relay".into(),
        address: address.into(),
        keys: keys.into(),
        config: Config { limits: Some(Limits::default()), ..Config::default() },
        exit: Exit { policy: Policy::new(Vec::new(), false, Vec::new()), directory: None },
        extends: Gate::Private,
        announce: Announce::None,
        status: None,
        measurement: None,
        published: None,
        defences: BTreeMap::new(),
        threads: NonZeroUsize::MIN,
    }
}

/// An exit to every address, with the directory that its directory streams reach.
pub fn open_exit(directory: Option<SocketAddr>) -> Exit {
    Exit { policy: Policy::new(vec!["accept *:*".parse().unwrap()], true, Vec::new()), directory }
}
