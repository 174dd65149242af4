//! Clients' traffic through a relay, for demonstrations and experiments.
//!
//! Circuits run from a client over the target to an exit, with real encryption. The exit sends at a given rate
//! from memory. Client and exit share this process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_control::units::{Rate, Span};
use tidegate_proto::cell::{CELL_BYTES, DATA_BYTES, RelayId};
use tidegate_proto::client::Client;
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::links::Config;
use tidegate_proto::node::{Node as _, Output, Source, StreamKey};
use tidegate_proto::relay::Relay;
use tokio::net::TcpListener;

use crate::identity::{Contact, Identity, random};
use crate::overlay::{Overlay, Unlimited};
use crate::{clock, link, tls};

/// Numbers of the target and the exit in the overlay's directory.
pub(crate) const TARGET: RelayId = RelayId(1);
/// See `TARGET`.
pub const EXIT: RelayId = RelayId(2);

/// Interval between the exit's turns to send.
const STEP: Span = Span::from_millis(10);

/// Source of zero bytes without end.
struct Zeros;

impl Source<Encrypted> for Zeros {
    fn take(&mut self, max: u16) -> Option<(u16, Bytes)> {
        let bytes = max.min(DATA_BYTES);
        Some((bytes, Bytes::from_static(&[0; DATA_BYTES as usize]).slice(..usize::from(bytes))))
    }
}

/// Sends over `circuits` circuits through the target at a total of `rate`, until dropped.
///
/// The exit accepts connections on `listener`; the target's directory must name it as [`EXIT`]. Must run inside
/// a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the exit's identity cannot be used.
pub async fn run(
    listener: TcpListener,
    exit: Arc<Identity>,
    target: (Contact, RelayPublic),
    circuits: usize,
    rate: Rate,
    delivered: Rc<Cell<u64>>,
) -> io::Result<()> {
    let address: SocketAddr = "127.0.0.1:80".parse().expect("an address");
    let streams: Rc<RefCell<Vec<StreamKey>>> = Rc::default();
    let node = Relay::new(Encrypted::new(Some(exit.relay()), BTreeMap::new(), random()), Config::default());
    let open = streams.clone();
    let at_exit = Overlay::new(
        node,
        Unlimited,
        None,
        BTreeMap::new(),
        Box::new(move |node, now, output| match output {
            Output::Connect(stream, _) => {
                node.stream_connected(now, stream);
                open.borrow_mut().push(stream);
            }
            Output::StreamClosed(stream, _) => open.borrow_mut().retain(|other| *other != stream),
            _ => {}
        }),
    );

    let keys = BTreeMap::from([(TARGET, target.1), (EXIT, exit.relay_public())]);
    let client = Client::new(Encrypted::new(None, keys, random()), Config::default());
    let lost = Rc::new(Cell::new(0));
    let closed = lost.clone();
    let owner = Box::new(move |node: &mut Client<Encrypted>, now, output| match output {
        Output::CircuitBuilt(circuit) => drop(node.open(now, circuit, address.into())),
        Output::Deliver(_, bytes, ..) => delivered.set(delivered.get() + u64::from(bytes)),
        Output::CircuitClosed(_) => closed.set(closed.get() + 1),
        _ => {}
    });
    let at_client = Overlay::new(client, Unlimited, None, BTreeMap::from([(TARGET, target.0)]), owner);
    for _ in 0..circuits {
        at_client.with(|client, now| client.build(now, vec![TARGET, EXIT]));
    }

    let tls = tls::server(&exit).map_err(io::Error::other)?;
    let accepting = async {
        loop {
            let Ok((tcp, _)) = listener.accept().await else { continue };
            let (overlay, tls) = (at_exit.clone(), tls.clone());
            tokio::task::spawn_local(async move {
                let timeout = Span::from_secs(10);
                let Ok((mut stream, _)) = link::accept(tcp, tls, timeout).await else { return };
                let Ok(first) = link::read_cell(&mut stream).await else { return };
                overlay.accepted(stream, first).await;
            });
        }
    };
    let sending = async {
        // Counted in bytes of cells, as the relay counts them.
        let (mut next, mut due) = (clock::now(), 0u64);
        loop {
            next += STEP;
            clock::until(next).await;
            due = (due + rate.0 / 8 * STEP.0 / 1_000_000_000).min(rate.0 / 8);
            let keys = streams.borrow().clone();
            for (i, stream) in keys.iter().enumerate() {
                let cells = due / u64::from(CELL_BYTES) / (keys.len() - i) as u64;
                due -= cells * u64::from(CELL_BYTES);
                at_exit.with(|node, now| node.package(now, *stream, cells as u32, &mut Zeros));
            }
            // Rebuild broken circuits, for example those begun before the target listened.
            for _ in 0..lost.take() {
                at_client.with(|client, now| client.build(now, vec![TARGET, EXIT]));
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = sending => {}
    }
    Ok(())
}
