//! TLS 1.3 with certificates pinned by fingerprint on both sides. There are no authorities: who is allowed
//! is decided by the role, from the fingerprint that the handshake proved.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use tidegate_proto::crypto::cert::Fingerprint;

use crate::identity::{Identity, fingerprint};

/// Both ends speak this, or the handshake fails: it names the version of the cells inside.
const PROTOCOL: &[u8] = b"tidegate/1";

/// AES-128-GCM first: what hardware does fastest, and what the circuits inside use.
fn provider() -> Arc<CryptoProvider> {
    let suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites: suites, ..ring::default_provider() })
}

/// For accepting connections; clients may prove who they are.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub fn server(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(AnyClient(provider.clone()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    config.alpn_protocols = vec![PROTOCOL.into()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For connecting to the peer with that fingerprint, and no other; proving who we are if `ours` is given.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub fn client(ours: Option<&Identity>, peer: Fingerprint) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(Pinned { provider: provider.clone(), peer });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match ours {
        Some(identity) => {
            builder.with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![PROTOCOL.into()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// For connecting to whoever answers: encrypted, but nobody knows with whom. Proves who we are.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub fn client_of_anybody(ours: &Identity) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(AnyServer(provider.clone()));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(vec![ours.certificate.clone()], ours.key.clone_key())?;
    config.alpn_protocols = vec![PROTOCOL.into()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// For accepting connections of Tor's kind, in which clients show no certificate.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub fn any_client(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For connections of Tor's kind: whoever holds its certificate's key will do, since cells prove later who that is.
///
/// # Errors
/// If TLS cannot be set up.
pub fn any_server() -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(AnyServer(provider.clone()));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The name that clients put into their hello; nobody looks at it.
pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from("tidegate.invalid").expect("a valid name")
}

/// Who the other side proved to be; `None` if it did not.
pub(crate) fn peer(connection: &rustls::CommonState) -> Option<Fingerprint> {
    connection.peer_certificates()?.first().map(fingerprint)
}

#[derive(Debug)]
struct Pinned {
    provider: Arc<CryptoProvider>,
    peer: Fingerprint,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(certificate) == self.peer {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General("the peer's certificate is not the pinned one".into()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts any certificate whose key the server holds.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts any certificate whose key the client holds; the fingerprint decides later what it may do.
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
