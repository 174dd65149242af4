//! A client with one-hop circuits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::random;
use tidegate_net::live::Links;
use tidegate_net::overlay::{Handle, Overlay, Owner, RateLimit, Unlimited};
use tidegate_proto::cell::RelayId;
use tidegate_proto::client::Client;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::crypto::{Encrypted, Router, SharedNames, Wishes};
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Output, StreamKey};
use tidegate_proto::transport::Transport;
use tokio::task::LocalSet;

pub fn on_sockets<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(test))
}

pub struct OneHop<G = Unlimited> {
    pub node: Overlay<Client<Encrypted>, G, Rc<Links>>,
    relay: RelayId,
    identity: Router,
    /// The results of circuits: `true` if built, `false` if closed.
    pub ends: Rc<RefCell<BTreeMap<CircuitKey, bool>>>,
    /// The bytes that streams have received.
    pub received: Rc<RefCell<BTreeMap<StreamKey, Vec<u8>>>>,
    /// The first circuits of linked circuits that are ready.
    pub linked: Rc<RefCell<Vec<CircuitKey>>>,
}

impl OneHop {
    pub fn new(router: Router, transport: Transport) -> OneHop {
        OneHop::with(router, Config { transport, ..Config::default() })
    }

    pub fn with(router: Router, config: Config) -> OneHop {
        OneHop::limited(router, config, Unlimited)
    }
}

impl<G: RateLimit + 'static> OneHop<G> {
    /// A client with a rate limit.
    pub fn limited(router: Router, config: Config, limit: G) -> OneHop<G> {
        let transport = config.transport;
        let names = SharedNames::default();
        let relay = names.borrow_mut().keep(router);
        let links = Rc::new(
            Links::client(names.clone(), transport == Transport::Quic).unwrap().with_gate(Gate::Private),
        );
        let onion = Encrypted::new(None, BTreeMap::new(), random()).with_names(names);
        let ends = Rc::<RefCell<BTreeMap<CircuitKey, bool>>>::default();
        let received = Rc::<RefCell<BTreeMap<StreamKey, Vec<u8>>>>::default();
        let linked = Rc::<RefCell<Vec<CircuitKey>>>::default();
        let seen = (ends.clone(), received.clone(), linked.clone());
        let owner = move |_: Handle<_, _, _>| -> Owner<Client<Encrypted>> {
            let (ends, received, linked) = seen;
            Box::new(move |_, _, output| match output {
                Output::CircuitBuilt(key) => drop(ends.borrow_mut().insert(key, true)),
                Output::CircuitClosed(key) => drop(ends.borrow_mut().insert(key, false)),
                Output::Deliver(key, _, data, _) => {
                    received.borrow_mut().entry(key).or_default().extend_from_slice(&data);
                }
                Output::Linked(key) => linked.borrow_mut().push(key),
                _ => {}
            })
        };
        OneHop {
            node: Overlay::with_dial(Client::new(onion, config), limit, links, owner),
            relay,
            identity: router,
            ends,
            received,
            linked,
        }
    }

    /// Whether circuits can be built with this onion key, by ntor and by ntor-v3.
    pub async fn builds(&self, onion: [u8; 32]) -> [bool; 2] {
        let mut built = [false; 2];
        for (built, ed25519) in built.iter_mut().zip([None, self.identity.ed25519]) {
            let public = RelayPublic { identity: self.identity.fingerprint, onion };
            let modern = ed25519.map(|ed25519| (ed25519, Wishes { congestion_control: true, cgo: true }));
            self.node.with(|node, _| node.onion().learn(self.relay, public, modern));
            *built = self.built(self.build()).await;
        }
        built
    }

    /// Begins a circuit.
    pub fn build(&self) -> CircuitKey {
        let key = self.node.with(|node, now| node.build(now, vec![self.relay]));
        self.ends.borrow_mut().remove(&key);
        key
    }

    /// Waits until a circuit is built or closed; whether it is built.
    pub async fn built(&self, key: CircuitKey) -> bool {
        loop {
            if let Some(end) = self.ends.borrow().get(&key) {
                return *end;
            }
            clock::until(clock::now() + Span::from_millis(2)).await;
        }
    }

    /// Closes all circuits.
    pub fn close_all(&self) {
        let keys: Vec<CircuitKey> = self.ends.borrow().keys().copied().collect();
        keys.into_iter().for_each(|key| self.node.with(|node, now| node.close(now, key)));
        self.ends.borrow_mut().clear();
    }
}
