//! What `serve` is told about the cluster that it is to take part in.

use anyhow::{Context, Result};
use lockwright_server::ServerOptions;
use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only builds with the feature can"))]
pub(super) struct ClusterArgs {
    /// Be one of several servers that share the locks out among them, by the etcd at etcd://HOST:PORT,HOST:PORT/CLUSTER (builds
    /// with the feature `cluster`, as packages have it)
    #[arg(long, value_name = "ETCD", conflicts_with_all = ["state", "export", "lend", "rdma"])]
    cluster: Option<String>,
    /// Name or address by which clients reach this server of a cluster [default: the one that it listens on]
    #[arg(long, value_name = "HOST", requires = "cluster")]
    advertise: Option<String>,
    /// Shards of a cluster that is not there yet. A server listens for each of its shards on a port of its own, above --listen
    #[arg(long, value_name = "N", default_value = "12", value_parser = clap::value_parser!(u16).range(1..=1000))]
    shards: u16,
    /// File with the user and the password, as USER:PASSWORD, that etcd wants
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_ETCD_USER_FILE")]
    etcd_user_file: Option<PathBuf>,
    /// Certificates (PEM) by which etcd is known; the connection to it is encrypted
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// Certificate chain and private key (PEM) of this server, where etcd wants them of its clients
    #[arg(long, value_name = "CERT,KEY", value_delimiter = ',', requires = "etcd_ca")]
    etcd_cert: Vec<PathBuf>,
}

impl ClusterArgs {
    pub(super) const fn is_asked_for(&self) -> bool {
        self.cluster.is_some()
    }

    /// What clients say.
    pub(super) fn space(&self) -> Option<String> {
        let address = self.cluster.as_ref()?.strip_prefix("etcd:")?;
        Some(format!("cluster:{}/NAME", address.trim_end_matches('/')))
    }

    #[cfg(not(feature = "cluster"))]
    pub(super) fn add_to(&self, _: ServerOptions) -> Result<ServerOptions> {
        Err(lockwright::OpenError::NO_CLUSTER).context("cannot take part in a cluster")
    }

    #[cfg(feature = "cluster")]
    pub(super) fn add_to(&self, options: ServerOptions) -> Result<ServerOptions> {
        let read =
            |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let address = self.cluster.as_deref().unwrap_or_default();
        let mut cluster = lockwright_server::ClusterOptions::at(address)?.shards(self.shards);
        if let Some(host) = &self.advertise {
            cluster = cluster.advertise(host);
        }
        if let Some(path) = &self.etcd_user_file {
            let (name, password) = crate::etcd_user(path)?;
            cluster = cluster.user(name, password);
        }
        if let Some(path) = &self.etcd_ca {
            let own = match &self.etcd_cert[..] {
                [] => None,
                [chain, key] => Some((read(chain)?, read(key)?)),
                _ => anyhow::bail!("--etcd-cert wants two files: the certificate chain, and its key"),
            };
            let own = own.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
            cluster = cluster.tls(&read(path)?, own)?;
        }
        Ok(options.cluster(cluster))
    }
}
