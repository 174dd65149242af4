//! TLS 1.3 with certificates pinned by fingerprint on both sides, without certificate authorities. Roles authorise a
//! peer by the fingerprint that its handshake proved.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use tidegate_proto::crypto::cert::Fingerprint;

use crate::identity::{Identity, fingerprint};

/// ALPN protocol. It names the version of the cells; the handshake fails if the peer does not offer it.
pub(crate) const PROTOCOL: &[u8] = b"tidegate/1";

/// AES-128-GCM first: hardware is fastest at it, and circuits use AES-128, too.
fn provider() -> Arc<CryptoProvider> {
    let suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites: suites, ..ring::default_provider() })
}

/// A server configuration. Clients may present a certificate.
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

/// A server configuration for clients without certificates, with these ALPN protocols.
///
/// # Errors
/// If the key does not fit the certificate.
#[cfg(feature = "moq")]
pub(crate) fn open_server(
    certificate: CertificateDer<'static>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
    protocols: Vec<Vec<u8>>,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = protocols;
    Ok(config)
}

/// A client configuration that accepts only the peer with that fingerprint, and presents `ours` if given.
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

/// A client configuration that accepts any server, unauthenticated, and presents our certificate.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub(crate) fn client_without_pin(ours: &Identity) -> Result<Arc<ClientConfig>, Error> {
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

/// A server configuration for links of stock tor, where clients present no certificate.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub(crate) fn any_client(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client configuration for links of stock tor. It accepts any certificate; cells authenticate the relay later.
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

/// SNI value; servers ignore it.
pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from("tidegate.invalid").expect("a valid name")
}

/// The peer's fingerprint; `None` without a certificate.
pub(crate) fn peer(connection: &rustls::CommonState) -> Option<Fingerprint> {
    connection.peer_certificates()?.first().map(fingerprint)
}

/// A client's message about a certificate that is not the pinned one.
pub(crate) const OTHER_FINGERPRINT: &str =
    "the peer's certificate has another fingerprint than the pinned one";

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
            Err(Error::General(format!("{OTHER_FINGERPRINT}; check the fingerprint in the configuration")))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not supported".into()))
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

/// Accepts any certificate if the server holds its private key.
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
        Err(Error::General("TLS 1.2 is not supported".into()))
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

/// Accepts any certificate if the client holds its private key. The role authorises by fingerprint.
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
        Err(Error::General("TLS 1.2 is not supported".into()))
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
