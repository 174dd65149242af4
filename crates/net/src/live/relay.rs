//! The role of a relay: accepts connections, forwards cells, lets streams out by its policy, and tells a directory that
//! it is there.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_proto::cell::EndReason;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::encrypted::Encrypted;
use tidegate_proto::crypto::names::SharedNames;
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::links::Config;
use tidegate_proto::node::{Node as _, Output};
use tidegate_proto::relay::Relay as Node;
use tokio::net::TcpListener;

use super::bandwidth::Limit;
use super::channel::Links;
use super::descriptor::{self, Facts};
use super::directory::Entry;
use super::exit::{self, Exit, Exiting};
use super::fetch::fetch;
use super::stream::{Local, Locals};
use crate::admission::Admission;
use crate::clock;
use crate::identity::random;
use crate::overlay::{Handle, Overlay, Owner};

/// Where a relay announces itself.
#[derive(Clone, Debug)]
pub enum Announce {
    /// Nowhere.
    None,
    /// To the directory of an overlay of one's own, with what it asks for.
    Overlay(SocketAddr, Option<String>),
    /// To the authority of a private Tor network, at its directory port.
    Tor(SocketAddr),
}

/// What a relay is told.
pub struct Settings {
    /// Its name.
    pub nickname: String,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Its keys.
    pub keys: RouterKeys,
    /// How it moves cells.
    pub config: Config,
    /// What it lets out.
    pub exit: Exit,
    /// Where it announces itself.
    pub announce: Announce,
}

/// Connections whose handshake is not over: the oldest goes when another comes.
const HANDSHAKES: usize = 512;
/// Bytes per second of a relay that does not say: as much as directories count.
const UNLIMITED: f64 = 1e9;
/// How often a relay announces itself to a directory of ours, to an authority of Tor's, and again after a refusal.
const ANNOUNCE: Span = Span::from_secs(30);
const PUBLISH: Span = Span::from_secs(15 * 60);
const AGAIN: Span = Span::from_secs(3);

/// What has happened to a relay that its operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The directory took its entry.
    Announced,
    /// The directory did not, and why.
    Refused(String),
}

/// A running relay. Clones are handles to the same relay.
#[derive(Clone)]
pub struct Relay {
    overlay: Exiting,
    links: Rc<Links>,
    handshakes: Rc<Admission>,
}

/// Runs a relay until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If TLS cannot be set up.
pub async fn run(settings: Settings, listener: TcpListener, hear: impl Fn(Event)) -> io::Result<()> {
    let Settings { nickname, address, keys, config, mut exit, announce } = settings;
    exit.policy.refuse(listener.local_addr()?);
    let names = SharedNames::default();
    let links = Rc::new(Links::relay(&keys, names.clone(), address.ip())?);
    let [secret, _] = keys.onion();
    let onion =
        Encrypted::new(Some(RelaySecret::new(keys.fingerprint(), secret)), Default::default(), random())
            .with_names(names, Some((keys.ed25519(), secret)));
    let bandwidth = if config.bandwidth.is_finite() { config.bandwidth } else { UNLIMITED } as u64;
    let exit = Rc::new(exit);
    let limit = Limit::new(config.bandwidth);
    let relay = Relay::new(Node::new(onion, config), limit, links.clone(), exit.clone());
    let announcing = async {
        loop {
            let said = match &announce {
                Announce::None => return std::future::pending().await,
                Announce::Overlay(at, token) => {
                    let facts = (bandwidth, exit.policy.is_exit(), clock::unix());
                    let line = Entry::new(&nickname, address, &keys, facts).line();
                    let token = token.as_ref().map_or(String::new(), |token| format!("token {token}\n"));
                    fetch(*at, "/relay", Some(format!("{token}{line}\n").as_bytes())).await
                }
                Announce::Tor(at) => {
                    let certified = links.certified().expect("a relay has keys");
                    let facts = Facts {
                        nickname: &nickname,
                        address,
                        bandwidth,
                        policy: &exit.policy,
                        directory: exit.directory.is_some(),
                        published: clock::unix(),
                    };
                    let text = descriptor::build(&keys, certified, &facts);
                    fetch(*at, "/tor/", Some(text.as_bytes())).await
                }
            };
            let (event, pause) = match said {
                Ok((200, _, _)) if matches!(announce, Announce::Tor(_)) => (Event::Announced, PUBLISH),
                Ok((200, _, _)) => (Event::Announced, ANNOUNCE),
                // Tor's authorities say why in the status line.
                Ok((code, words, body)) => {
                    let body = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
                    (Event::Refused(format!("{code} {words} {body}")), AGAIN)
                }
                Err(cause) => (Event::Refused(cause.to_string()), AGAIN),
            };
            hear(event);
            clock::until(clock::now() + pause).await;
        }
    };
    tokio::select! {
        () = relay.accept(listener) => {}
        () = announcing => {}
    }
    Ok(())
}

impl Relay {
    fn new(node: Node<Encrypted>, limit: Limit, links: Rc<Links>, exit: Rc<Exit>) -> Relay {
        let locals = Locals::default();
        let streams = node.limits().map_or(usize::MAX, |limits| limits.streams as usize);
        let owner = |own: Handle<_, _, _>| -> Owner<Node<Encrypted>> {
            Box::new(move |node, now, output| match output {
                Output::Connect(key, target) => {
                    let Some(overlay) = own.get() else { return };
                    if locals.borrow().len() >= streams {
                        return node.end_stream(now, key, EndReason::MISC);
                    }
                    let local = Rc::<Local>::default();
                    locals.borrow_mut().insert(key, local.clone());
                    tokio::task::spawn_local(exit::serve(overlay, exit.clone(), key, target, local));
                }
                Output::Deliver(key, _, data) => {
                    if let Some(local) = locals.borrow().get(&key) {
                        node.backlog(now, key, local.deliver(data));
                    }
                }
                Output::Package(key, cells) => {
                    if let Some(local) = locals.borrow().get(&key) {
                        local.package(cells);
                    }
                }
                Output::StreamClosed(key, _) => {
                    if let Some(local) = locals.borrow_mut().remove(&key) {
                        local.end();
                    }
                }
                _ => {}
            })
        };
        let overlay = Overlay::with_dial(node, limit, links.clone(), owner);
        Relay { overlay, links, handshakes: Rc::new(Admission::new(HANDSHAKES)) }
    }

    async fn accept(&self, listener: TcpListener) {
        loop {
            let Ok((tcp, from)) = listener.accept().await else {
                // Out of descriptors, most likely: others must end first.
                clock::until(clock::now() + Span::from_millis(50)).await;
                continue;
            };
            let from = from.ip();
            if self.overlay.with(|node, now| node.turns_away(now, from)) {
                continue;
            }
            let relay = self.clone();
            tokio::task::spawn_local(async move {
                // How a connection ends concerns nobody else.
                let Some(Ok(met)) = relay.handshakes.run(relay.links.accept(tcp)).await else { return };
                // Others may have come meanwhile.
                if !relay.overlay.with(|node, now| node.turns_away(now, from)) {
                    let tell = |node: &mut Node<_>, now, id| node.channel_is_from(now, id, from);
                    relay.overlay.met_from(met, tell).await;
                }
            });
        }
    }
}
