//! `tidegate more serve` and `tidegate more socks`: TCP connections over receiver paths.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use tidegate_control::units::Span;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_more::descriptor::Descriptor;
use tidegate_more::directory::Hex;
use tidegate_net::more::entropy;
use tidegate_net::more::{self, Serving};
use tidegate_net::more::{Front, Receiver};

use super::directory::{read_secret, write};
use super::peer::{PathArgs, PeerArgs, SendArgs, USES};
use crate::failure::Failure;

/// Timeout of the SOCKS handshake.
const HANDSHAKE: Span = Span::from_secs(10);

/// Runs hidden services for local servers.
pub fn serve(
    peer: &PeerArgs,
    paths: PathArgs,
    targets: &[SocketAddr],
    publish: &[PathBuf],
    published: u64,
) -> Result<(), Failure> {
    if targets.len() != publish.len() {
        let cause = format!("{} targets and {} descriptors", targets.len(), publish.len());
        return Err(InputError::new("more serve", cause, "give each --target a --publish").into());
    }
    let mut services = BTreeSet::new();
    for path in publish {
        if !services.insert(path.file_stem()) {
            let cause = "two services have the same name, which is the file's name without extension";
            return Err(InputError::new(path.display().to_string(), cause, "rename one of them").into());
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let cause = format!("cannot be written: {} is not a folder", folder.display());
            return Err(InputError::new(path.display().to_string(), cause, "create the folder").into());
        }
        // A descriptor of an earlier run is replaced, and any other file stays.
        if path.exists() {
            receiver(path).map_err(|error| {
                let cause = format!("is not replaced: {}", error.cause);
                InputError::new(error.file, cause, "name another file")
            })?;
        }
    }
    let serving =
        targets.iter().zip(publish).map(|(target, publish)| hide(peer, *target, publish, published as usize));
    let serving = serving.collect::<Result<Vec<Serving>, InputError>>()?;
    let settings = peer.settings(&SendArgs { paths, ..SendArgs::default() }, USES)?;
    peer.run(&settings, |stop| more::serve(&settings, serving, stop))?;
    Ok(())
}

/// Loads the name and key of a service, which persist in files beside the peer's; creates them at first.
fn hide<'a>(
    peer: &PeerArgs,
    target: SocketAddr,
    publish: &'a Path,
    paths: usize,
) -> Result<Serving<'a>, InputError> {
    let service = publish.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let secret = |what: &str| -> Result<Hex<32>, InputError> {
        let path = peer.overlay.join(format!("peer-{}.{service}.{what}", peer.number));
        if !path.exists() {
            write(&path, &format!("{}\n", Hex(entropy())), true)?;
        }
        read_secret(&path)
    };
    let (name, key) = (secret("name.secret")?, secret("messages.secret")?);
    let name_of_file = publish.file_name().unwrap_or_default().to_string_lossy();
    let fresh = publish.with_file_name(format!(".{name_of_file}.{}", std::process::id()));
    let publish = move |descriptor: &Descriptor| {
        // Write and rename, so that readers never see a partial file.
        std::fs::write(&fresh, descriptor.write(&name.0))?;
        std::fs::rename(&fresh, publish)
    };
    Ok(Serving { name: name.0, key: key.0, paths, target, publish: Box::new(publish) })
}

/// Runs a SOCKS5 front.
pub fn socks(
    peer: &PeerArgs,
    (sends, uses): (&SendArgs, u64),
    receivers: &[PathBuf],
    listen: SocketAddr,
) -> Result<(), Failure> {
    if !listen.ip().is_loopback() {
        let cause = format!("{listen} is not a loopback address");
        let cure = "listen on a loopback address: this SOCKS5 proxy does not ask for a password";
        return Err(InputError::new("--listen", cause, cure).into());
    }
    let receivers =
        receivers.iter().map(|path| receiver(path)).collect::<Result<Vec<Receiver>, InputError>>()?;
    let listener = TcpListener::bind(listen).map_err(|error| {
        InputError::new("--listen", format!("{listen}: {error}"), "choose another address or port")
    })?;
    let bound = listener.local_addr().map_err(Failure::other)?;
    for receiver in &receivers {
        eprintln!("SOCKS5 on {bound} to {}", receiver.names.join(" or "));
    }
    let front = Front { listener, receivers, handshake: HANDSHAKE };
    let settings = peer.settings(sends, uses)?;
    peer.run(&settings, |stop| more::socks(&settings, front, stop))?;
    Ok(())
}

fn receiver(path: &Path) -> Result<Receiver<'_>, InputError> {
    let source = SourceFile::read(path)?;
    let descriptor = Descriptor::parse(&source.text).map_err(|error| {
        InputError::new(
            &source.file,
            error.to_string(),
            "get a new one from the operator of the service (`tidegate more serve`)",
        )
    })?;
    let mut names = vec![format!("{}.more", Hex(descriptor.name))];
    names.extend(path.file_stem().map(|stem| format!("{}.more", stem.to_string_lossy())));
    let reread = move || std::fs::read_to_string(path).ok().and_then(|text| Descriptor::parse(&text).ok());
    Ok(Receiver { descriptor, names, reread: Box::new(reread) })
}
