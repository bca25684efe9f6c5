//! Addresses of spaces: `mem:`, `shm:…`, `tcp://…`, `rdma://…`.

use crate::error::OpenError;
#[cfg(target_os = "linux")]
use crate::remote::address;
#[cfg(target_os = "linux")]
use std::path::PathBuf;

/// Where a space is.
pub(crate) enum Address {
    Mem,
    #[cfg(target_os = "linux")]
    Shm(PathBuf),
    #[cfg(target_os = "linux")]
    Served {
        by: TransportKind,
        server: String,
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
            _ => Err(OpenError::Address(text.to_owned())),
        }
    }
}
