//! TLS, by rustls: certificates in, encrypted streams out.

use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The text is no PEM.
    #[error("this is no certificate or key in PEM form: {0}")]
    Pem(#[from] pem::Error),
    /// There is none in it.
    #[error("there is no certificate in it")]
    Empty,
    /// The certificate or key is not accepted.
    #[error("the certificate or key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The name is no host name or address.
    #[error("{0:?} is no host name or address")]
    Name(String),
}

/// A server's certificate and key.
#[derive(Clone)]
pub struct TlsServer(TlsAcceptor);

impl TlsServer {
    /// From a chain of certificates and a private key, both PEM.
    ///
    /// # Errors
    /// If they cannot be read or do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certificates_of(certificates)?, key)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The server's side of the handshake.
    ///
    /// # Errors
    /// If the client cannot or will not.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer(…)")
    }
}

/// The certificates a client trusts, and the name it expects the server to have.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsClient {
    /// Trusts servers whose certificate is among `roots` (PEM), or signed by one of them, and is made out to `name`.
    ///
    /// # Errors
    /// If there is no certificate in `roots`, or `name` is no name.
    pub fn from_pem(roots: &[u8], name: &str) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in certificates_of(roots)? {
            store.add(certificate)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(store)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if certificates.is_empty() { Err(TlsError::Empty) } else { Ok(certificates) }
}
