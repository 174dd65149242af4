//! `tidegate more keygen` and `tidegate more directory`: keys, and who takes part.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidegate_control::units::Span;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_more::directory::{Directory, DirectoryError, Hex, MAX_EPOCHS, PeerEntry, authority_key};
use tidegate_more::keys::PeerKeys;
use tidegate_net::more_peer::entropy;
use tidegate_net::{clock, os};

/// Draw keys: of a peer, or of the authority that signs the directory
#[derive(clap::Args)]
pub struct Keygen {
    /// Folder for peer.secret and peer.toml, or for authority.secret and authority.key
    #[arg(long)]
    out: PathBuf,
    /// Where the peer receives datagrams: host:port, [IPv6]:port
    #[arg(long, required_unless_present = "authority")]
    address: Option<String>,
    /// Key epochs to draw keys for; the same for all peers of a directory
    #[arg(long, default_value_t = EPOCHS)]
    epochs: u32,
    /// Draw the authority's key instead
    #[arg(long, conflicts_with = "address")]
    authority: bool,
}

/// Make, sign and check the directory of an overlay
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    whole: Whole,
}

/// An overlay on one machine, with all its keys.
#[derive(clap::Args)]
struct Whole {
    /// Draw keys for an overlay on one machine: folder for directory.toml, authority.key and a secret per peer
    #[arg(long, required = true)]
    out: Option<PathBuf>,
    /// Number of peers
    #[arg(long, required = true)]
    peers: Option<u16>,
    /// Address of peer 0; the others have the ports that follow
    #[arg(long, default_value = "127.0.0.1:9700")]
    first: SocketAddr,
    /// How long a key epoch is
    #[arg(long, default_value = EPOCH)]
    epoch: String,
    /// Key epochs to draw keys for
    #[arg(long, default_value_t = EPOCHS)]
    epochs: u32,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add a peer, which makes the directory if there is none; it has to be signed again
    Add {
        /// The directory
        #[arg(long)]
        directory: PathBuf,
        /// What the peer's `more keygen` wrote, peer.toml
        #[arg(long)]
        peer: PathBuf,
        /// How long a key epoch is; only for a new directory, whose first epoch begins now
        #[arg(long)]
        epoch: Option<String>,
    },
    /// Sign the directory
    Sign {
        /// The directory
        #[arg(long)]
        directory: PathBuf,
        /// The authority's secret
        #[arg(long)]
        authority: PathBuf,
    },
    /// Check the signature and say who takes part
    Verify {
        /// The directory
        #[arg(long)]
        directory: PathBuf,
        /// The authority's key
        #[arg(long)]
        authority: PathBuf,
    },
}

/// How long a key epoch is, and how many are drawn: a week.
const EPOCH: &str = "1 h";
const EPOCHS: u32 = 168;

/// Draws keys.
pub fn keygen(arguments: Keygen) -> Result<(), InputError> {
    make_folder(&arguments.out)?;
    if arguments.authority {
        return draw_authority(&arguments.out);
    }
    check_epochs(arguments.epochs)?;
    let secret = entropy();
    let peer = entry(secret, arguments.address.unwrap_or_default(), arguments.epochs);
    let alone = Directory { start: 0, seconds: 3600, peers: vec![peer.clone()] };
    Directory::parse_unsigned(&alone.write(None))
        .map_err(|error| InputError::new("--address", error.to_string(), "give host:port"))?;
    let public = toml::to_string(&peer).expect("plain data can be written");
    write(&arguments.out.join("peer.secret"), &format!("{}\n", Hex(secret)), true)?;
    write(&arguments.out.join("peer.toml"), &public, false)?;
    println!(
        "keep peer.secret; give {} to who runs the directory",
        arguments.out.join("peer.toml").display()
    );
    Ok(())
}

/// Makes, changes or checks a directory.
pub fn main(arguments: Arguments) -> Result<(), InputError> {
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

fn whole(arguments: Whole) -> Result<(), InputError> {
    let Whole { out, peers, first, epoch, epochs } = arguments;
    let (out, peers) = (out.unwrap_or_default(), peers.unwrap_or(0));
    let last = u32::from(first.port()) + u32::from(peers);
    if peers < 3 || last > 65_536 {
        let cause = format!("{peers} peers from port {} on", first.port());
        return Err(InputError::new("more directory", cause, "give at least 3 peers and ports up to 65535"));
    }
    check_epochs(epochs)?;
    let address = |peer| SocketAddr::new(first.ip(), first.port() + peer);
    create(&out, &(0..peers).map(address).collect::<Vec<_>>(), seconds(&epoch)?, epochs)?;
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

/// Keys for an overlay whose peers have these addresses, and its signed directory.
pub(crate) fn create(
    out: &Path,
    addresses: &[SocketAddr],
    seconds: u64,
    epochs: u32,
) -> Result<(), InputError> {
    make_folder(out)?;
    let mut peers = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        let secret = entropy();
        peers.push(entry(secret, address.to_string(), epochs));
        write(&out.join(format!("peer-{number}.secret")), &format!("{}\n", Hex(secret)), true)?;
    }
    draw_authority(out)?;
    let authority = read_secret(&out.join("authority.secret"))?;
    let directory = Directory { start: clock::unix(), seconds, peers };
    let text = directory.write(Some(&authority.0));
    Directory::parse(&text, &authority_key(&authority.0)).map_err(|error| wrong(out, &error))?;
    write(&out.join("directory.toml"), &text, false)
}

fn entry(secret: [u8; 32], address: String, epochs: u32) -> PeerEntry {
    let keys = PeerKeys::new(secret);
    let epochs = (0..epochs).map(|epoch| Hex(keys.onion_key(epoch))).collect();
    PeerEntry { address, key: Hex(keys.link_key()), epochs }
}

fn draw_authority(out: &Path) -> Result<(), InputError> {
    let secret = entropy();
    write(&out.join("authority.secret"), &format!("{}\n", Hex(secret)), true)?;
    write(&out.join("authority.key"), &format!("{}\n", Hex(authority_key(&secret))), false)
}

fn add(path: &Path, peer: &Path, epoch: Option<&str>) -> Result<(), InputError> {
    let source = SourceFile::read(peer)?;
    let entry: PeerEntry = toml::from_str(&source.text).map_err(|error| {
        InputError::new(&source.file, format!("is no peer: {error}"), "write it with `tidegate more keygen`")
    })?;
    let mut directory = match (path.exists(), epoch) {
        (false, epoch) => {
            Directory { start: clock::unix(), seconds: seconds(epoch.unwrap_or(EPOCH))?, peers: Vec::new() }
        }
        (true, Some(_)) => {
            let cause = format!("{} has epochs already", path.display());
            return Err(InputError::new("--epoch", cause, "leave it out"));
        }
        (true, None) => {
            Directory::parse_unsigned(&SourceFile::read(path)?.text).map_err(|error| wrong(path, &error))?.0
        }
    };
    let known = |other: &PeerEntry| other.key == entry.key || other.address == entry.address;
    if let Some(number) = directory.peers.iter().position(known) {
        let cause = format!("peer {number} of {} has its key or its address", path.display());
        return Err(InputError::new(&source.file, cause, "it was added before"));
    }
    directory.peers.push(entry);
    let text = directory.write(None);
    Directory::parse_unsigned(&text).map_err(|error| wrong(peer, &error))?;
    replace(path, &text)?;
    let number = directory.peers.len() - 1;
    println!(
        "peer {number}: rename its peer.secret to peer-{number}.secret; sign the directory when all are in"
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
    InputError::new(path.display().to_string(), error.to_string(), "")
}

fn make_folder(out: &Path) -> Result<(), InputError> {
    std::fs::create_dir_all(out).map_err(|e| {
        InputError::new(out.display().to_string(), format!("cannot be made: {e}"), "choose another folder")
    })
}

/// Replaces a file whole or not at all.
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

/// Writes a new file; only its owner may read a secret.
pub(crate) fn write(path: &Path, text: &str, secret: bool) -> Result<(), InputError> {
    let options = if secret { os::private_file() } else { Ok(OpenOptions::new()) };
    let file = options.and_then(|mut options| options.write(true).create_new(true).open(path));
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let cause = format!("cannot be written: {error}");
        InputError::new(path.display().to_string(), cause, "choose a new folder")
    })
}

/// A public key in a file.
pub(crate) fn read(path: &Path) -> Result<Hex<32>, InputError> {
    let source = SourceFile::read(path)?;
    source
        .text
        .parse()
        .map_err(|error: String| InputError::new(&source.file, error, "write it with `tidegate more keygen`"))
}

/// A secret in a file that nobody else can read.
pub(crate) fn read_secret(path: &Path) -> Result<Hex<32>, InputError> {
    // What is not there is found out below.
    let open = std::fs::metadata(path).ok().map(|about| os::open_to_others(&about)).transpose();
    let refused = |cause: std::io::Error| InputError::new(path.display().to_string(), cause.to_string(), "");
    if open.map_err(refused)?.flatten().is_some() {
        let cure = format!("chmod 600 {0}; if others could, draw a new one", path.display());
        return Err(InputError::new(path.display().to_string(), "can be read by others", cure));
    }
    read(path)
}
