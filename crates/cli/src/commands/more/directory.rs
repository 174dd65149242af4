//! `tidegate more keygen` and `tidegate more directory`: keys and the list of peers.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidegate_control::units::Span;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_more::directory::{Directory, DirectoryError, Hex, MAX_EPOCHS, PeerEntry, authority_key};
use tidegate_more::keys::PeerKeys;
use tidegate_net::more::entropy;
use tidegate_net::{clock, os};

/// Generate keys of a peer, or of the authority that signs the directory
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate more keygen --out peer --address 192.0.2.1:9700\n  tidegate more keygen --out authority --authority"
)]
pub struct KeygenArgs {
    /// Write peer.secret and peer.toml, or authority.secret and authority.key, to this folder
    #[arg(long)]
    out: PathBuf,
    /// Announce that the peer receives datagrams at this host:port or [IPv6]:port
    #[arg(long, required_unless_present = "authority")]
    address: Option<String>,
    /// Generate keys for this many epochs; all peers of a directory need the same number
    #[arg(long, default_value_t = EPOCHS)]
    epochs: u32,
    /// Generate the authority's key instead
    #[arg(long, conflicts_with_all = ["address", "epochs"])]
    authority: bool,
}

/// Create, sign and verify the directory of an overlay
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate more directory --out overlay --peers 10")]
#[command(args_conflicts_with_subcommands = true)]
pub struct MoreDirectoryArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    whole: LocalOverlayArgs,
}

/// Options of an overlay on one machine with all its keys.
#[derive(clap::Args)]
struct LocalOverlayArgs {
    /// Create an overlay on one machine: write directory.toml, authority.key and all secrets to this folder
    #[arg(long, required = true)]
    out: Option<PathBuf>,
    /// Create this many peers
    #[arg(long, required = true)]
    peers: Option<u16>,
    /// Use this address for peer 0 and the following ports for the others
    #[arg(long, default_value = "127.0.0.1:9700")]
    first: SocketAddr,
    /// Make each key epoch this long
    #[arg(long, default_value = EPOCH)]
    epoch: String,
    /// Generate keys for this many epochs
    #[arg(long, default_value_t = EPOCHS)]
    epochs: u32,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add a peer to the directory; create the directory if it does not exist
    #[command(
        after_help = "Example:\n  tidegate more directory add --directory directory.toml --peer peer.toml"
    )]
    Add {
        /// Use this directory file
        #[arg(long)]
        directory: PathBuf,
        /// Add the peer in this peer.toml, which `more keygen` wrote
        #[arg(long)]
        peer: PathBuf,
        /// Make each key epoch this long; only for a new directory [default: 1 h]
        #[arg(long)]
        epoch: Option<String>,
    },
    /// Sign the directory
    #[command(
        after_help = "Example:\n  tidegate more directory sign --directory directory.toml --authority authority.secret"
    )]
    Sign {
        /// Use this directory file
        #[arg(long)]
        directory: PathBuf,
        /// Sign with the key in this authority.secret
        #[arg(long)]
        authority: PathBuf,
    },
    /// Verify the signature and list the peers
    #[command(
        after_help = "Example:\n  tidegate more directory verify --directory directory.toml --authority authority.key"
    )]
    Verify {
        /// Use this directory file
        #[arg(long)]
        directory: PathBuf,
        /// Verify with the key in this authority.key
        #[arg(long)]
        authority: PathBuf,
    },
}

/// Default length of a key epoch, and number of epochs: keys last a week.
const EPOCH: &str = "1 h";
const EPOCHS: u32 = 168;

/// Runs `more keygen`.
pub fn keygen(arguments: KeygenArgs) -> Result<(), InputError> {
    if arguments.authority {
        make_folder(&arguments.out)?;
        return write_authority(&arguments.out, entropy());
    }
    check_epochs(arguments.epochs)?;
    let secret = entropy();
    let peer = entry(secret, arguments.address.unwrap_or_default(), arguments.epochs);
    let alone = Directory { start: 0, seconds: 3600, peers: vec![peer.clone()] };
    Directory::parse_unsigned(&alone.write(None))
        .map_err(|error| InputError::new("--address", error.to_string(), "give host:port"))?;
    let public = toml::to_string(&peer).expect("plain data can be written");
    make_folder(&arguments.out)?;
    write(&arguments.out.join("peer.secret"), &format!("{}\n", Hex(secret)), true)?;
    write(&arguments.out.join("peer.toml"), &public, false)?;
    println!(
        "keep peer.secret private; give {} to the operator of the directory",
        arguments.out.join("peer.toml").display()
    );
    Ok(())
}

/// Runs `more directory`.
pub fn main(arguments: MoreDirectoryArgs) -> Result<(), InputError> {
    match arguments.command {
        None => whole(arguments.whole),
        Some(Command::Add { directory, peer, epoch }) => add(&directory, &peer, epoch.as_deref()),
        Some(Command::Sign { directory, authority }) => sign(&directory, &authority),
        Some(Command::Verify { directory, authority }) => {
            let known = read_directory(&directory, &read(&authority)?)?;
            let epoch = known.epoch_at(clock::unix()).map_err(|error| wrong(&directory, &error))?;
            println!(
                "{} peers, epoch {epoch} of {}, {} s each",
                known.peers.len(),
                known.epochs(),
                known.seconds
            );
            for (number, peer) in known.peers.iter().enumerate() {
                println!("peer {number}: {} {}", peer.address, peer.key);
            }
            Ok(())
        }
    }
}

fn whole(arguments: LocalOverlayArgs) -> Result<(), InputError> {
    let LocalOverlayArgs { out, peers, first, epoch, epochs } = arguments;
    let (out, peers) = (out.unwrap_or_default(), peers.unwrap_or(0));
    let last = u32::from(first.port()) + u32::from(peers);
    if peers < 3 || last > 65_536 {
        let cause = format!("{peers} peers from port {} on", first.port());
        return Err(InputError::new("more directory", cause, "give at least 3 peers and ports up to 65535"));
    }
    check_epochs(epochs)?;
    let seconds = seconds(&epoch)?;
    let address = |peer| SocketAddr::new(first.ip(), first.port() + peer);
    create(&out, &(0..peers).map(address).collect::<Vec<_>>(), seconds, epochs)?;
    println!("{peers} peers in {}", out.display());
    Ok(())
}

fn check_epochs(epochs: u32) -> Result<(), InputError> {
    match (1..=MAX_EPOCHS).contains(&(epochs as usize)) {
        true => Ok(()),
        false => {
            Err(InputError::new("--epochs", format!("{epochs} epochs"), format!("give 1 to {MAX_EPOCHS}")))
        }
    }
}

fn seconds(epoch: &str) -> Result<u64, InputError> {
    let span: Span =
        epoch.parse().map_err(|e| InputError::new("--epoch", format!("{e}"), "give a time, as \"1 h\""))?;
    Ok(span.0 / 1_000_000_000)
}

/// Creates keys and a signed directory for peers at these addresses.
pub(crate) fn create(
    out: &Path,
    addresses: &[SocketAddr],
    seconds: u64,
    epochs: u32,
) -> Result<(), InputError> {
    let secrets: Vec<[u8; 32]> = addresses.iter().map(|_| entropy()).collect();
    let peers =
        secrets.iter().zip(addresses).map(|(secret, at)| entry(*secret, at.to_string(), epochs)).collect();
    let authority = entropy();
    let text = Directory { start: clock::unix(), seconds, peers }.write(Some(&authority));
    // Nothing is written if the directory would be refused.
    Directory::parse(&text, &authority_key(&authority)).map_err(|error| {
        InputError::new("more directory", error.to_string(), "see `tidegate more --help`")
    })?;
    make_folder(out)?;
    for (number, secret) in secrets.into_iter().enumerate() {
        write(&out.join(format!("peer-{number}.secret")), &format!("{}\n", Hex(secret)), true)?;
    }
    write_authority(out, authority)?;
    write(&out.join("directory.toml"), &text, false)
}

fn entry(secret: [u8; 32], address: String, epochs: u32) -> PeerEntry {
    let keys = PeerKeys::new(secret);
    let epochs = (0..epochs).map(|epoch| Hex(keys.onion_key(epoch))).collect();
    PeerEntry { address, key: Hex(keys.link_key()), epochs }
}

fn write_authority(out: &Path, secret: [u8; 32]) -> Result<(), InputError> {
    write(&out.join("authority.secret"), &format!("{}\n", Hex(secret)), true)?;
    write(&out.join("authority.key"), &format!("{}\n", Hex(authority_key(&secret))), false)
}

fn add(path: &Path, peer: &Path, epoch: Option<&str>) -> Result<(), InputError> {
    let source = SourceFile::read(peer)?;
    let entry: PeerEntry = toml::from_str(&source.text).map_err(|error| {
        InputError::new(
            &source.file,
            format!("is not a peer entry: {error}"),
            "create it with `tidegate more keygen`",
        )
    })?;
    let mut directory = match (path.exists(), epoch) {
        (false, epoch) => {
            Directory { start: clock::unix(), seconds: seconds(epoch.unwrap_or(EPOCH))?, peers: Vec::new() }
        }
        (true, Some(_)) => {
            let cause = format!("{} already defines its epochs", path.display());
            return Err(InputError::new("--epoch", cause, "remove the option"));
        }
        (true, None) => {
            Directory::parse_unsigned(&SourceFile::read(path)?.text).map_err(|error| wrong(path, &error))?.0
        }
    };
    let known = |other: &PeerEntry| other.key == entry.key || other.address == entry.address;
    if let Some(number) = directory.peers.iter().position(known) {
        let cause = format!("peer {number} of {} has the same key or address", path.display());
        return Err(InputError::new(&source.file, cause, "add each peer once"));
    }
    directory.peers.push(entry);
    let text = directory.write(None);
    Directory::parse_unsigned(&text).map_err(|error| wrong(peer, &error))?;
    replace(path, &text)?;
    let number = directory.peers.len() - 1;
    println!(
        "peer {number}: rename its peer.secret to peer-{number}.secret; sign the directory after the last peer"
    );
    Ok(())
}

fn sign(path: &Path, authority: &Path) -> Result<(), InputError> {
    let authority = read_secret(authority)?;
    let read =
        Directory::parse_unsigned(&SourceFile::read(path)?.text).map_err(|error| wrong(path, &error))?;
    let text = read.0.write(Some(&authority.0));
    Directory::parse(&text, &authority_key(&authority.0)).map_err(|error| wrong(path, &error))?;
    replace(path, &text)
}

/// Reads a directory and checks its signature.
pub(crate) fn read_directory(path: &Path, authority: &Hex<32>) -> Result<Directory, InputError> {
    Directory::parse(&SourceFile::read(path)?.text, &authority.0).map_err(|error| wrong(path, &error))
}

fn wrong(path: &Path, error: &DirectoryError) -> InputError {
    InputError::new(path.display().to_string(), error.to_string(), "check the directory and its key")
}

fn make_folder(out: &Path) -> Result<(), InputError> {
    std::fs::create_dir_all(out).map_err(|e| {
        InputError::new(out.display().to_string(), format!("cannot be created: {e}"), "choose another folder")
    })
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> Result<(), InputError> {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path)).map_err(|error| {
        InputError::new(
            path.display().to_string(),
            format!("cannot be written: {error}"),
            "check the permissions",
        )
    })
}

/// Writes a new file; a secret is readable only by its owner.
pub(crate) fn write(path: &Path, text: &str, secret: bool) -> Result<(), InputError> {
    let options = if secret { os::private_file() } else { Ok(OpenOptions::new()) };
    let file = options.and_then(|mut options| options.write(true).create_new(true).open(path));
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let cause = format!("cannot be written: {error}");
        InputError::new(path.display().to_string(), cause, "choose a new folder")
    })
}

/// Reads a public key from a file.
pub(crate) fn read(path: &Path) -> Result<Hex<32>, InputError> {
    let source = SourceFile::read(path)?;
    source.text.parse().map_err(|error: String| {
        InputError::new(&source.file, error, "create it with `tidegate more keygen`")
    })
}

/// Reads a secret from a file that must be readable only by its owner.
pub(crate) fn read_secret(path: &Path) -> Result<Hex<32>, InputError> {
    // A missing file is reported by `read` below.
    let open = std::fs::metadata(path).ok().map(|about| os::open_to_others(&about)).transpose();
    let refused = |cause: std::io::Error| {
        InputError::new(path.display().to_string(), cause.to_string(), "check its permissions")
    };
    if open.map_err(refused)?.flatten().is_some() {
        let cure =
            format!("chmod 600 {0}; if another user may have read it, generate a new one", path.display());
        return Err(InputError::new(path.display().to_string(), "can be read by others", cure));
    }
    read(path)
}
