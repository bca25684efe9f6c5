//! TLS to etcd, by rustls: the certificates that its members are known by, and a certificate of our own where they want one.

use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// See the module.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Trusts members whose certificate is signed by one of `roots`, and shows them its own chain and key; all PEM.
    ///
    /// # Errors
    /// In one line, if one of them cannot be used.
    pub fn from_pem(roots: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        for root in certificates(roots)? {
            store.add(root).map_err(|error| format!("the certificate cannot be used: {error}"))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(store);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| format!("this is no key in PEM form: {error}"))?;
                let config = builder.with_client_auth_cert(certificates(chain)?, key);
                config.map_err(|error| format!("the certificate or key cannot be used: {error}"))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to `endpoint`, a name and a port.
    pub(super) async fn connect(
        &self,
        endpoint: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name =
            ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates =
        certificates.map_err(|error| format!("this is no certificate in PEM form: {error}"))?;
    if certificates.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(certificates) }
}
