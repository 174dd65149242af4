//! `tidegate more serve` and `tidegate more socks`: local connections over receiver paths.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use tidegate_control::units::Span;
use tidegate_lab::input::{InputError, Source};
use tidegate_more::descriptor::Descriptor;
use tidegate_more::directory::Hex;
use tidegate_net::more_streams::{self, Front, Serving};

use crate::Failure;
use crate::more::{PeerArguments, read, write};

/// For an application's part of the SOCKS handshake.
const HANDSHAKE: Span = Span::from_secs(10);

/// Hides a local server.
pub fn serve(peer: &PeerArguments, target: SocketAddr, publish: &Path, paths: usize) -> Result<(), Failure> {
    // The receiver keeps its name and key from run to run.
    let secret = |what: &str| -> Result<Hex<32>, InputError> {
        let path = peer.overlay.join(format!("peer-{}.{what}", peer.number));
        if !path.exists() {
            write(&path, &format!("{}\n", Hex(tidegate_net::more::entropy())), true)?;
        }
        read(&path)
    };
    let (name, key) = (secret("name.secret")?, secret("letters.secret")?);
    let fresh = publish.with_extension("fresh");
    let publish = &mut |descriptor: &Descriptor| {
        // Renamed, so that nobody reads half of it.
        std::fs::write(&fresh, descriptor.write(&name.0))?;
        std::fs::rename(&fresh, publish)
    };
    let serving = Serving { name: name.0, key: key.0, paths, target, publish };
    peer.run(|settings, stop| more_streams::serve(settings, serving, stop))
}

/// Opens a SOCKS5 front.
pub fn socks(peer: &PeerArguments, receiver: &Path, listen: SocketAddr) -> Result<(), Failure> {
    if !listen.ip().is_loopback() {
        let cause = format!("{listen} is reachable from other machines");
        let cure = "SOCKS5 here asks for no password: listen on a loopback address";
        return Err(InputError::new("--listen", cause, cure).into());
    }
    let source = Source::read(receiver)?;
    let descriptor = Descriptor::parse(&source.text).map_err(|error| {
        InputError::new(&source.file, error.to_string(), "get it from whoever runs `tidegate more serve`")
    })?;
    let mut names = vec![format!("{}.more", Hex(descriptor.name))];
    names.extend(receiver.file_stem().map(|stem| format!("{}.more", stem.to_string_lossy())));
    let listener = TcpListener::bind(listen).map_err(|error| {
        InputError::new("--listen", format!("{listen}: {error}"), "choose another address or port")
    })?;
    eprintln!("SOCKS5 on {listen} to {}", names.join(" or "));
    let reread =
        &mut || std::fs::read_to_string(receiver).ok().and_then(|text| Descriptor::parse(&text).ok());
    let front = Front { listener, receiver: descriptor, names, reread, handshake: HANDSHAKE };
    peer.run(|settings, stop| more_streams::socks(settings, front, stop))
}
