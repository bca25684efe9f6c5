//! Addresses of spaces: `mem:`, `shm:…`, `tcp://…`, `rdma://…`, `fiss://…`, `cluster://…`.

use crate::error::OpenError;
#[cfg(target_os = "linux")]
use crate::one_sided::local;
#[cfg(target_os = "linux")]
use crate::remote::address;
#[cfg(target_os = "linux")]
use lockwright_cluster::address::ClusterAddress;
#[cfg(target_os = "linux")]
use std::path::PathBuf;

/// Where a space is.
pub(crate) enum Address {
    Mem,
    #[cfg(target_os = "linux")]
    Shm(PathBuf),
    /// A one-sided space of this host.
    #[cfg(target_os = "linux")]
    Local(PathBuf),
    #[cfg(target_os = "linux")]
    Served {
        by: TransportKind,
        server: String,
        space: Vec<u8>,
    },
    #[cfg(all(target_os = "linux", feature = "fiss"))]
    Fiss {
        decider: String,
        space: Vec<u8>,
    },
    #[cfg(target_os = "linux")]
    Cluster {
        address: ClusterAddress,
        space: Vec<u8>,
    },
}

/// What a server is reached by.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportKind {
    Tcp,
    #[cfg(feature = "rdma")]
    Rdma,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, OpenError> {
        match text.split_once(':') {
            Some(("mem", "")) => Ok(Self::Mem),
            #[cfg(target_os = "linux")]
            Some(("shm", path)) if path.starts_with('/') => Ok(Self::Shm(path.into())),
            #[cfg(target_os = "linux")]
            Some(("shm", name)) if name.starts_with(local::SCHEME) => {
                let path = local::path_of(&name[local::SCHEME.len()..]);
                path.map(Self::Local).map_err(|_| OpenError::Address(text.to_owned()))
            }
            #[cfg(target_os = "linux")]
            Some(("shm", name)) => {
                let name = if name.is_empty() { "default" } else { name };
                let path = lockwright_fabric::backend::shm::space_path(name);
                path.map(Self::Shm).map_err(|_| OpenError::Address(text.to_owned()))
            }
            #[cfg(target_os = "linux")]
            Some(("tcp", rest)) => match address::parse(rest, address::PORT) {
                Some((server, space)) => Ok(Self::Served { by: TransportKind::Tcp, server, space }),
                None => Err(OpenError::Address(text.to_owned())),
            },
            #[cfg(target_os = "linux")]
            Some(("rdma", rest)) => match address::parse(rest, address::RDMA_PORT) {
                #[cfg(feature = "rdma")]
                Some((server, space)) => Ok(Self::Served { by: TransportKind::Rdma, server, space }),
                #[cfg(not(feature = "rdma"))]
                Some(_) => Err(OpenError::NO_RDMA),
                None => Err(OpenError::Address(text.to_owned())),
            },
            #[cfg(target_os = "linux")]
            Some(("fiss", rest)) => match address::parse(rest, address::FISS_PORT) {
                #[cfg(feature = "fiss")]
                Some((decider, space)) => Ok(Self::Fiss { decider, space }),
                #[cfg(not(feature = "fiss"))]
                Some(_) => Err(OpenError::NO_FISS),
                None => Err(OpenError::Address(text.to_owned())),
            },
            #[cfg(target_os = "linux")]
            Some(("cluster", rest)) => match ClusterAddress::parse(rest) {
                _ if !cfg!(feature = "cluster") => Err(OpenError::NO_CLUSTER),
                Some((address, space)) if space.len() <= crate::wire::MAX_SPACE => {
                    Ok(Self::Cluster { address, space: space.as_bytes().to_vec() })
                }
                _ => Err(OpenError::Address(text.to_owned())),
            },
            _ => Err(OpenError::Address(text.to_owned())),
        }
    }
}
