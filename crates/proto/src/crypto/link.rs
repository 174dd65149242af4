//! The handshake of two nodes on a new TLS connection (tor-spec, "Negotiating and initializing channels"): link
//! protocol versions, certificates, and the initiator's proof by AUTHENTICATE. It uses neither clocks nor sockets,
//! and reads a limited number of bytes from a peer that has not proved its identity.

use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::cert::{self, Certified, Proved};
use super::rsa_keys::Invalid;
use super::wire::{self, Splitter, command};

/// Supported link protocol versions. The two sides use the highest common one.
const VERSIONS: [u16; 2] = [4, 5];
/// Bytes of versions that a peer may state.
const LONGEST_VERSIONS: u16 = 1024;
/// Authentication type: an Ed25519 signature over secrets of the TLS exporter (Ed25519-SHA256-RFC5705).
const METHOD: u16 = 3;
const AUTH_NAME: &[u8] = b"AUTH0003";
/// Bytes of an AUTHENTICATE cell that the signature covers.
const SIGNED: usize = 288;
/// TLS exporter label for AUTHENTICATE (tor-spec, "Ed25519-SHA256-RFC5705").
pub const EXPORTER: &[u8] = b"EXPORTER FOR TOR TLS CLIENT BINDING AUTH0003";
/// Maximum number of cells in a handshake.
const MAX_CELLS: u32 = 16;

/// Prefix of a VPADDING cell, which other implementations ignore. The sender's circuits may move between connections,
/// and it understands its neighbours' plans.
const OURS: &[u8] = b"tidegate 1";
/// Prefix of another VPADDING cell: the sender accepts QUIC at its TLS address and port, or wants to use QUIC.
const QUIC: &[u8] = b"tidegate quic";

/// Properties of a TLS connection.
pub trait Tls {
    /// SHA-256 of the responder's certificate.
    fn certificate(&self) -> [u8; 32];
    /// 32 secret bytes that both ends export for [`EXPORTER`] and a context.
    fn export(&self, context: &[u8]) -> [u8; 32];
}

/// Result of a handshake: the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The proved identity of a relay; a client proves none.
    pub proved: Option<Proved>,
    /// The peer supports this project's extensions.
    pub ours: bool,
    /// QUIC is supported.
    pub quic: bool,
    /// The negotiated link protocol version.
    pub version: u16,
    /// Our address as the peer sees it.
    pub address: Option<IpAddr>,
}

/// One node's input to a handshake.
pub struct Start {
    /// The node's certificates. A responder and a relay that initiates must have them.
    pub keys: Option<Arc<Certified>>,
    /// Seconds since 1970.
    pub now: u64,
    /// Fresh random bytes.
    pub random: [u8; 32],
    /// The peer's address.
    pub address: IpAddr,
    /// The addresses where others reach this relay. A peer that connected to one of them reuses the connection.
    pub ours: Vec<IpAddr>,
    /// QUIC is supported.
    pub quic: bool,
    /// This project's extensions are supported: plans of neighbours, and moves of circuits between connections.
    pub extensions: bool,
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The two sides do not share a link protocol version.
    Version,
    /// A certificate or a proof is wrong.
    Invalid(Invalid),
    /// The peer is not the relay that the initiator wanted.
    OtherRelay,
    /// A cell is out of order, repeated or too long.
    Protocol,
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Version => f.write_str("the peer supports none of our link protocol versions"),
            LinkError::Invalid(why) => why.fmt(f),
            LinkError::OtherRelay => f.write_str("the peer is another relay than the requested one"),
            LinkError::Protocol => f.write_str("the peer violates the link handshake"),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<Invalid> for LinkError {
    fn from(why: Invalid) -> LinkError {
        LinkError::Invalid(why)
    }
}

/// One side of a handshake.
pub struct Handshake {
    start: Start,
    initiator: bool,
    /// Initiator: the relay to reach.
    wanted: Option<[u8; 20]>,
    version: Option<u16>,
    splitter: Splitter,
    /// Bytes of the peer's incomplete VERSIONS cell, which has a shorter header than others.
    early: Vec<u8>,
    output: Vec<u8>,
    /// The transcript: the responder's bytes up to AUTH_CHALLENGE, the initiator's up to AUTHENTICATE.
    responder_log: Sha256,
    initiator_log: Sha256,
    certs: Option<Proved>,
    challenged: bool,
    authenticated: bool,
    ours: bool,
    quic: bool,
    cells: u32,
}

impl Handshake {
    /// Initiator's side. `wanted`: the relay that the peer must be.
    pub fn initiator(start: Start, wanted: Option<[u8; 20]>) -> Handshake {
        let mut handshake = Handshake::new(start, true, wanted);
        handshake.say_versions();
        handshake
    }

    /// Responder's side; it needs certificates.
    pub fn responder(start: Start) -> Handshake {
        Handshake::new(start, false, None)
    }

    fn new(start: Start, initiator: bool, wanted: Option<[u8; 20]>) -> Handshake {
        Handshake {
            start,
            initiator,
            wanted,
            version: None,
            splitter: Splitter::new(&[]),
            early: Vec::new(),
            output: Vec::new(),
            responder_log: Sha256::new(),
            initiator_log: Sha256::new(),
            certs: None,
            challenged: false,
            authenticated: false,
            ours: false,
            quic: false,
            cells: 0,
        }
    }

    fn say_versions(&mut self) {
        let mut cell = vec![0, 0, command::VERSIONS, 0, 2 * VERSIONS.len() as u8];
        cell.extend(VERSIONS.iter().flat_map(|version| version.to_be_bytes()));
        self.said(&cell, true);
    }

    fn say(&mut self, command: u8, body: &[u8], logged: bool) {
        let mut cell = Vec::new();
        wire::write(command, body, &mut cell);
        self.said(&cell, logged);
    }

    fn said(&mut self, cell: &[u8], logged: bool) {
        if logged {
            let log = if self.initiator { &mut self.initiator_log } else { &mut self.responder_log };
            log.update(cell);
        }
        self.output.extend_from_slice(cell);
    }

    fn heard(&mut self, cell: &[u8]) {
        let log = if self.initiator { &mut self.responder_log } else { &mut self.initiator_log };
        log.update(cell);
    }

    /// Takes the bytes to write now.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Bytes that followed the handshake's last cell.
    pub fn rest(&self) -> &[u8] {
        self.splitter.rest()
    }

    /// Takes bytes from the peer. Returns the peer once the handshake is over. Write [`output`](Self::output) after
    /// each call.
    ///
    /// # Errors
    /// If the peer violates the handshake, or has another identity than expected.
    pub fn receive(&mut self, mut bytes: &[u8], tls: &dyn Tls) -> Result<Option<Peer>, LinkError> {
        if self.version.is_none() {
            if !self.take_versions(&mut bytes)? {
                return Ok(None);
            }
            self.versions()?;
        }
        while !bytes.is_empty() {
            let space = self.splitter.space();
            let count = bytes.len().min(space.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.splitter.filled(count);
            bytes = &bytes[count..];
            if let Some(peer) = self.cells(tls)? {
                return Ok(Some(peer));
            }
        }
        self.cells(tls)
    }

    /// Collects the peer's VERSIONS cell, the only one with a circuit id of two bytes.
    fn take_versions(&mut self, bytes: &mut &[u8]) -> Result<bool, LinkError> {
        loop {
            let stated = self.early.get(3..5).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            let wanted = 5 + usize::from(stated.unwrap_or(0));
            let taken = bytes.len().min(wanted - self.early.len());
            self.early.extend_from_slice(&bytes[..taken]);
            *bytes = &bytes[taken..];
            if self.early.len() < wanted {
                return Ok(false);
            }
            if stated.is_some() {
                return Ok(true);
            }
            // The header is whole. Each version has two bytes.
            let length = u16::from_be_bytes([self.early[3], self.early[4]]);
            let is_valid = length > 0 && length <= LONGEST_VERSIONS && length.is_multiple_of(2);
            if self.early[..3] != [0, 0, command::VERSIONS] || !is_valid {
                return Err(LinkError::Protocol);
            }
        }
    }

    fn versions(&mut self) -> Result<(), LinkError> {
        let early = std::mem::take(&mut self.early);
        self.heard(&early);
        let theirs = early[5..].chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        let version = theirs.filter(|version| VERSIONS.contains(version)).max().ok_or(LinkError::Version)?;
        self.version = Some(version);
        if !self.initiator {
            let keys = self.start.keys.clone().ok_or(LinkError::Protocol)?;
            self.say_versions();
            self.say(command::CERTS, &keys.certs(false), true);
            let challenge = [&self.start.random[..], &[0, 1], &METHOD.to_be_bytes()].concat();
            self.say(command::AUTH_CHALLENGE, &challenge, true);
            self.say_additions();
            self.say_netinfo();
        }
        Ok(())
    }

    fn say_netinfo(&mut self) {
        let encode = |address: IpAddr| match address {
            IpAddr::V4(address) => [&[4, 4], &address.octets()[..]].concat(),
            IpAddr::V6(address) => [&[6, 16], &address.octets()[..]].concat(),
        };
        let mut ours = vec![self.start.ours.len() as u8];
        self.start.ours.iter().for_each(|address| ours.extend(encode(*address)));
        // A client sends no timestamp (tor-spec, "NETINFO cells").
        let now = if self.start.keys.is_some() { self.start.now as u32 } else { 0 };
        self.say(
            command::NETINFO,
            &[&now.to_be_bytes()[..], &encode(self.start.address), &ours].concat(),
            false,
        );
    }

    fn cells(&mut self, tls: &dyn Tls) -> Result<Option<Peer>, LinkError> {
        loop {
            let before = self.splitter.rest().to_vec();
            let Some((_, command, body)) = self.splitter.take().map_err(|_| LinkError::Protocol)? else {
                return Ok(None);
            };
            let body = body.to_vec();
            let cell = &before[..before.len() - self.splitter.rest().len()];
            self.cells += 1;
            if self.cells > MAX_CELLS {
                return Err(LinkError::Protocol);
            }
            match command {
                command::PADDING | command::PADDING_NEGOTIATE => {}
                command::VPADDING => {
                    self.ours |= body == OURS;
                    self.quic |= body == QUIC;
                }
                command::CERTS if self.certs.is_none() => {
                    self.heard(cell);
                    let certificate = tls.certificate();
                    let tls = self.initiator.then_some(&certificate);
                    self.certs = Some(cert::check_certs(&body, tls, self.start.now)?);
                }
                command::AUTH_CHALLENGE if self.initiator && self.certs.is_some() && !self.challenged => {
                    self.heard(cell);
                    self.challenged(&body, tls)?;
                }
                command::AUTHENTICATE if !self.initiator && self.certs.is_some() && !self.authenticated => {
                    self.check_authenticate(&body, tls)?;
                }
                command::NETINFO => return self.netinfo(&body).map(Some),
                _ => return Err(LinkError::Protocol),
            }
        }
    }

    /// Initiator: the responder's CERTS and AUTH_CHALLENGE are here.
    fn challenged(&mut self, body: &[u8], tls: &dyn Tls) -> Result<(), LinkError> {
        self.challenged = true;
        let proved = self.certs.as_ref().expect("CERTS came before");
        if self.wanted.is_some_and(|wanted| wanted != proved.fingerprint) {
            return Err(LinkError::OtherRelay);
        }
        let methods = body.get(34..).unwrap_or(&[]).chunks_exact(2);
        let understood = methods.into_iter().any(|method| method == METHOD.to_be_bytes());
        if let Some(keys) = self.start.keys.clone().filter(|_| understood) {
            self.say(command::CERTS, &keys.certs(true), true);
            let proved = self.certs.as_ref().expect("CERTS came before");
            let ends = [(&keys.rsa_digest, &keys.ed25519), (&proved.rsa_digest, &proved.ed25519)];
            let mut signed = self.to_sign(ends, tls);
            signed.extend_from_slice(&self.start.random[..24]);
            let signature = keys.authenticate(&signed);
            let length = (signed.len() + signature.len()) as u16;
            let body = [&METHOD.to_be_bytes()[..], &length.to_be_bytes(), &signed, &signature].concat();
            self.say(command::AUTHENTICATE, &body, false);
        }
        self.say_additions();
        self.say_netinfo();
        Ok(())
    }

    /// Announces this node's extensions to Tor's protocol.
    fn say_additions(&mut self) {
        if self.start.extensions {
            self.say(command::VPADDING, OURS, false);
        }
        if self.start.quic {
            self.say(command::VPADDING, QUIC, false);
        }
    }

    /// The signed part of an AUTHENTICATE cell, up to its random bytes. `ends`: the initiator's identities, then the
    /// responder's.
    fn to_sign(&self, ends: [(&[u8; 32], &[u8; 32]); 2], tls: &dyn Tls) -> Vec<u8> {
        let [(rsa, ed25519), (other_rsa, other_ed25519)] = ends;
        [
            AUTH_NAME,
            rsa,
            other_rsa,
            ed25519,
            other_ed25519,
            &self.responder_log.clone().finalize(),
            &self.initiator_log.clone().finalize(),
            &tls.certificate(),
            &tls.export(rsa),
        ]
        .concat()
    }

    /// Responder: verifies that the initiator is at the other end of this connection.
    fn check_authenticate(&mut self, body: &[u8], tls: &dyn Tls) -> Result<(), LinkError> {
        let wrong = Invalid("the AUTHENTICATE cell is wrong");
        let (keys, proved) = (self.start.keys.as_ref(), self.certs.as_ref());
        let (keys, proved) = keys.zip(proved).ok_or(LinkError::Protocol)?;
        let (&[high, low, _, _], body) = body.split_first_chunk::<4>().ok_or(wrong)?;
        let (signed, rest) = body.split_first_chunk::<SIGNED>().ok_or(wrong)?;
        let (signature, _) = rest.split_first_chunk::<64>().ok_or(wrong)?;
        let ends = [(&proved.rsa_digest, &proved.ed25519), (&keys.rsa_digest, &keys.ed25519)];
        let expected = self.to_sign(ends, tls);
        let key = proved.auth.as_ref().ok_or(wrong)?;
        // In constant time: the end of it is a secret of the TLS connection.
        let said = bool::from(signed[..expected.len()].ct_eq(&expected));
        let fits = u16::from_be_bytes([high, low]) == METHOD && said;
        if !fits || !cert::verifies(key, signed, signature) {
            return Err(wrong.into());
        }
        self.authenticated = true;
        Ok(())
    }

    fn netinfo(&mut self, body: &[u8]) -> Result<Peer, LinkError> {
        // An initiator must know the responder's identity.
        if self.initiator && !self.challenged {
            return Err(LinkError::Protocol);
        }
        // tor's responder treats a peer with certificates and without AUTHENTICATE as a client.
        let proved = self.certs.take().filter(|_| self.initiator || self.authenticated);
        let address = match body.get(4..).unwrap_or(&[]) {
            [4, 4, rest @ ..] => rest.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            [6, 16, rest @ ..] => rest.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
            _ => None,
        };
        let version = self.version.expect("VERSIONS came first");
        let ours = self.ours && self.start.extensions;
        Ok(Peer { proved, ours, quic: self.quic, version, address })
    }
}
