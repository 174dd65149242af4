//! Reads and verifies a consensus: relays, addresses, weights, relatives and the shared random value.
//!
//! A consensus needs the signatures of more than half of the trusted authorities. It cannot aim the team at a
//! host: a relay is measured only if the configuration names it, with its operator's consent, and it must prove
//! its keys before any load.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::units::Rate;
use tidegate_data::authority::{Certificates, TOR, identities};
use tidegate_data::consensus::{self, Identity};
use tidegate_data::document::{DataError, Document};
use tidegate_data::{microdescriptor, open};

/// Files from which the network is read.
#[derive(Clone, Debug)]
pub(crate) struct NetworkSource {
    /// A consensus, or a folder of them: the last one by name that is already valid counts.
    pub consensus: PathBuf,
    /// The authorities' certificates: a file, a folder of files, or a `.tar.xz` of them.
    pub certificates: PathBuf,
    /// Microdescriptors, which name relays' families, for a consensus of the microdesc flavour.
    pub microdescriptors: Option<PathBuf>,
    /// Identities of the trusted authorities.
    pub authorities: BTreeSet<Identity>,
}

/// A verified consensus.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Unix time at which the consensus became valid.
    pub valid_after: u64,
    /// The shared random value; empty if the consensus lacks it.
    pub shared_random: Vec<u8>,
    /// The running relays.
    pub(crate) relays: BTreeMap<RelayId, Listed>,
    /// Number of trusted authorities that signed it.
    pub signatures: usize,
}

/// A running relay.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listed {
    /// Consensus weight, with kB/s converted to a bit rate.
    pub weight: Rate,
    /// Address for overlay connections.
    pub address: SocketAddr,
    /// Relays that declared it a relative, and that it declared one.
    pub relatives: BTreeSet<RelayId>,
}

/// Largest age of a consensus in seconds: three days, as tor allows.
const OLDEST: u64 = 3 * 86_400;
/// How far the clock may be behind the authorities', in seconds.
const AHEAD: u64 = 600;

impl NetworkSource {
    /// Parses the authorities' identities; without any, those of Tor are trusted.
    ///
    /// # Errors
    /// The first that is not an identity.
    pub(crate) fn new(
        consensus: PathBuf,
        certificates: PathBuf,
        authorities: &[String],
    ) -> Result<NetworkSource, String> {
        let named = authorities.iter().map(String::as_str);
        let authorities = if authorities.is_empty() { identities(TOR) } else { identities(named) };
        let authorities = authorities.map_err(|name| format!("authorities: {name} is not an identity"))?;
        Ok(NetworkSource { consensus, certificates, microdescriptors: None, authorities })
    }

    /// Reads and verifies the network as of `unix`.
    ///
    /// # Errors
    /// If a file cannot be read, is not signed by more than half of the authorities, or is too old.
    pub(crate) fn read(&self, unix: u64) -> Result<Network, DataError> {
        let mut certificates = Certificates::default();
        certificates.open(&self.certificates)?;
        let mut last = None;
        for path in files(&self.consensus)?.iter().rev() {
            let document = open::open(path)?;
            let read = consensus::read(&document)?;
            if read.valid_after <= unix + AHEAD {
                last = Some((document, read));
                break;
            }
        }
        let Some((document, read)) = last else {
            let name = self.consensus.display().to_string();
            let none = Document::new(name, "no consensus")?;
            return Err(none.error("holds no consensus that is valid already", "fetch one, or set the clock"));
        };
        if read.valid_after + OLDEST < unix {
            let days = (unix - read.valid_after) / 86_400;
            return Err(document.error(format!("is {days} days old"), "fetch one of the last three days"));
        }
        // Signatures count at the time of the consensus: keys may have expired since.
        let signed = certificates.verify(&document, read.valid_after, &self.authorities)?;
        let families = match &self.microdescriptors {
            Some(path) => microdescriptor::families(&open::open(path)?, &read.relays)?.1.relatives,
            None => BTreeMap::new(),
        };
        let running = read.relays.iter().filter(|relay| relay.flags.running());
        let listed = running.map(|relay| {
            let relatives =
                families.get(&relay.identity).into_iter().flatten().map(|other| other.0).collect();
            let address = SocketAddr::from((relay.address, relay.or_port));
            (relay.identity.0, Listed { weight: weight(relay.bandwidth), address, relatives })
        });
        Ok(Network {
            valid_after: read.valid_after,
            shared_random: consensus::shared_random(&document).map_or_else(Vec::new, |value| value.to_vec()),
            relays: listed.collect(),
            signatures: signed.len(),
        })
    }
}

/// A weight as a bit rate, at least 1 Mbit/s so that the first measurement is informative.
fn weight(kilobytes: u32) -> Rate {
    Rate(u64::from(kilobytes) * 8000).max(Rate(1_000_000))
}

/// The file itself, or the files of the folder in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let unreadable = |cause| DataError::unreadable(path.display().to_string(), &cause);
    let entries =
        std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
    // A name that starts with a dot belongs to a file that is still being written.
    let hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut files: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    files.retain(|path| path.is_file() && !hidden(path));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{hex, random};

    const AUTHORITIES: [&str; 3] = [
        "2CCED436C9AA0848E9BC8F8591B6971F953EF6FD",
        "402B3E041D1C6EB0E81066FD0639CADBB7111E87",
        "CD1C8498139FC47B9BCD96CB1884CC30111B6B74",
    ];
    /// 2030-01-02 03:00:00, when the consensus became valid.
    const VALID_AFTER: u64 = 1_893_553_200;

    #[test]
    fn the_last_signed_consensus_of_a_folder_is_used() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/fixtures");
        let folder = std::env::temp_dir().join(format!("tidegate-network-{}", hex(&random::<8>())));
        std::fs::create_dir(&folder).unwrap();
        let text = std::fs::read_to_string(fixtures.join("consensus-signed")).unwrap();
        let authorities = AUTHORITIES.map(str::to_owned);
        let source = NetworkSource::new(folder.clone(), fixtures.join("certificates"), &authorities).unwrap();
        assert!(source.read(VALID_AFTER).unwrap_err().cause.contains("no consensus that is valid already"));
        std::fs::write(folder.join("2030-01-02-03"), &text).unwrap();
        // One that is not valid yet, and one that is still being written.
        std::fs::write(folder.join("2031-01-01-00"), text.replace("2030-01-02 03", "2031-01-01 00")).unwrap();
        std::fs::write(folder.join(".2032"), "half of").unwrap();
        let network = source.read(VALID_AFTER + 3600).unwrap();
        assert_eq!((network.valid_after, network.signatures), (VALID_AFTER, 2));
        assert_eq!(network.shared_random, (0..32).collect::<Vec<u8>>());
        let weights: Vec<u64> = network.relays.values().map(|listed| listed.weight.0).collect();
        assert!(weights.contains(&(3134 * 8000)) && weights.iter().all(|weight| *weight >= 1_000_000));
        let old = source.read(VALID_AFTER + 5 * 86_400).unwrap_err();
        assert!(old.cause.contains("is 5 days old"), "{old}");
        // A forged address of a relay.
        std::fs::write(folder.join("2030-01-02-03"), text.replacen("192.0.2.12", "192.0.2.99", 1)).unwrap();
        let forged = source.read(VALID_AFTER + 3600).unwrap_err();
        assert!(forged.cause.contains("signed by 0 of 3"), "{forged}");
        assert!(NetworkSource::new(folder.clone(), folder.clone(), &["nobody".to_owned()]).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
