//! Finding and opening an RDMA device: which one, which port, which address (GID), and what it can do.
//!
//! libibverbs is loaded at run time. A machine without it, or without a device, gets one line that says so.

#![allow(unsafe_code)]

use super::ffi::{self as ib, Verbs};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::ptr::NonNull;

/// Which device to use. Everything left out is chosen: the first device, its first port, and the first RoCE v2 address
/// for IPv4, or else the port's first address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name, as `ibv_devices` prints it.
    pub name: Option<String>,
    /// The port, counted from one.
    pub port: Option<u8>,
    /// The index of the address in the port's table.
    pub gid_index: Option<u8>,
}

/// `NAME`, `NAME:PORT` or `NAME:PORT:GID`, such as `mlx5_0`, `rxe0:1` or `rxe0:1:3`; an empty name is any device.
///
/// ```
/// use lockwright_fabric::backend::rdma::DeviceChoice;
/// let choice: DeviceChoice = "rxe0:1:3".parse().unwrap();
/// assert_eq!((choice.name.as_deref(), choice.port, choice.gid_index), (Some("rxe0"), Some(1), Some(3)));
/// assert!("rxe0:one".parse::<DeviceChoice>().is_err());
/// ```
impl std::str::FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
        let mut number = || parts.next().map(str::parse::<u8>).transpose();
        match (number(), number(), parts.next()) {
            (Ok(port), Ok(gid_index), None) => Ok(Self { name, port, gid_index }),
            _ => Err(DeviceError::NoChoice(text.to_owned())),
        }
    }
}

/// Why no device can be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no libibverbs, or no device.
    #[error("no RDMA device: {0}; `lockwright doctor` says what this machine has")]
    None(String),
    /// That is no way to name one.
    #[error("{0:?} names no RDMA device: say NAME, NAME:PORT or NAME:PORT:GID, such as rxe0:1:1")]
    NoChoice(String),
    /// There is no device of that name.
    #[error("there is no RDMA device called {name}; this machine has {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// There is no such port.
    #[error("{device} has no port {port}: its ports are 1 to {ports}")]
    NoPort {
        /// The device.
        device: String,
        /// What was asked for.
        port: u8,
        /// How many it has.
        ports: u8,
    },
    /// The port is not up.
    #[error("port {port} of {device} is {state}; bring its link up (`rdma link`, `ip link set … up`)")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What it is instead.
        state: String,
    },
    /// There is no such address.
    #[error("{device} has no address at GID index {index} of port {port}; `rdma link` and sysfs list them")]
    NoAddress {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index.
        index: u8,
    },
    /// The device has no atomics.
    #[error("{device} has no 8-byte atomic verbs, which every lock here needs")]
    NoAtomics {
        /// The device.
        device: String,
    },
    /// The system refused something.
    #[error("{what} on {device}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// On which device.
        device: String,
        /// What the system said.
        error: io::Error,
    },
}

/// An open device with the port and address that were chosen.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: NonNull<ib::ibv_context>,
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u32,
    /// READs and atomics that may be under way on one queue pair.
    pub(super) depth: u8,
    pub(super) max_wr: u32,
    /// Its atomics and those of CPUs exclude each other. Rare; most exclude other verbs of the same NIC only.
    pub(super) global_atomics: bool,
}

// SAFETY: libibverbs allows any thread to use a context; nothing here changes after `open`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, and everything made on it holds an `Arc` of this.
        unsafe { (self.verbs.ibv_close_device)(self.context.as_ptr()) };
    }
}

/// The names of this machine's RDMA devices; empty where there is no libibverbs either.
pub fn devices() -> Vec<String> {
    List::get().map(|list| list.names()).unwrap_or_default()
}

/// Whether there is a device, for tests that need one: without, they say so and do nothing. Where `LOCKWRIGHT_NEED_RDMA` is set,
/// as in the virtual machine of `cargo xtask soft-roce`, that is a failure.
///
/// # Panics
/// If there is none, and there must be.
///
/// ```
/// use lockwright_fabric::backend::rdma::{devices, has_device};
/// assert_eq!(has_device(), !devices().is_empty());
/// ```
pub fn has_device() -> bool {
    let found = !devices().is_empty();
    let needed = std::env::var_os("LOCKWRIGHT_NEED_RDMA").is_some();
    assert!(found || !needed, "no RDMA device, where there must be one");
    if !found {
        println!("skipped: no RDMA device; `cargo xtask soft-roce` brings its own");
    }
    found
}

/// What this machine's devices are and can do, one line each, or why one cannot be used.
///
/// # Errors
/// If there is none.
pub fn look() -> Result<Vec<Result<String, DeviceError>>, DeviceError> {
    let list = List::get().map_err(DeviceError::None)?;
    let names = list.names();
    if names.is_empty() {
        return Err(DeviceError::None("the list of devices is empty".to_owned()));
    }
    let say = |name: String| {
        let device = Device::open(&DeviceChoice { name: Some(name), ..DeviceChoice::default() })?;
        let gid = std::net::Ipv6Addr::from(device.gid);
        let scope = if device.global_atomics { "CPUs and NICs" } else { "this NIC" };
        Ok(format!(
            "{} port {} is up, GID {} {gid}, 8-byte atomics among {scope}",
            device.name, device.port, device.gid_index
        ))
    };
    Ok(names.into_iter().map(say).collect())
}

/// The list that libibverbs gives out.
struct List {
    verbs: &'static Verbs,
    first: NonNull<*mut ib::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<Self, String> {
        let (verbs, mut count) = (Verbs::get()?, 0);
        // SAFETY: `count` is a place for the number; the list is freed in `drop`.
        let first = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| io::Error::last_os_error().to_string())?;
        Ok(Self { verbs, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn each(&self) -> impl Iterator<Item = *mut ib::ibv_device> {
        // SAFETY: the list holds `count` devices and lives as long as `self`.
        (0..self.count).map(|index| unsafe { *self.first.add(index).as_ptr() })
    }

    /// The name of a device on this list.
    fn name_of(&self, device: *mut ib::ibv_device) -> String {
        // SAFETY: the device is on a live list, and its name is a C string inside it.
        unsafe { CStr::from_ptr((self.verbs.ibv_get_device_name)(device)) }.to_string_lossy().into_owned()
    }

    fn names(&self) -> Vec<String> {
        self.each().map(|device| self.name_of(device)).collect()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: came from `ibv_get_device_list`, and devices that were opened live on.
        unsafe { (self.verbs.ibv_free_device_list)(self.first.as_ptr()) };
    }
}

impl Device {
    /// Opens what `choice` asks for.
    pub(super) fn open(choice: &DeviceChoice) -> Result<Self, DeviceError> {
        let list = List::get().map_err(DeviceError::None)?;
        let known = list.names();
        let wanted = choice.name.clone().or_else(|| known.first().cloned());
        let wanted = wanted.ok_or_else(|| DeviceError::None("the list of devices is empty".to_owned()))?;
        let found = list.each().find(|device| list.name_of(*device) == wanted);
        let Some(found) = found else { return Err(DeviceError::Unknown { name: wanted, known }) };
        let failed =
            |what| DeviceError::System { what, device: wanted.clone(), error: io::Error::last_os_error() };
        // SAFETY: `found` is on the list, which is still alive.
        let context = NonNull::new(unsafe { (list.verbs.ibv_open_device)(found) });
        let context = context.ok_or_else(|| failed("opening"))?;
        let mut device = Self {
            verbs: list.verbs,
            context,
            name: wanted.clone(),
            port: choice.port.unwrap_or(1),
            gid_index: 0,
            gid: [0; 16],
            lid: 0,
            mtu: 0,
            depth: 1,
            max_wr: 0,
            global_atomics: false,
        };
        // SAFETY: all numbers, for which zero is a value.
        let mut attr: ib::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and a place for what is asked for.
        if unsafe { (device.verbs.ibv_query_device)(context.as_ptr(), &raw mut attr) } != 0 {
            return Err(failed("asking for the attributes"));
        }
        if device.port == 0 || device.port > attr.phys_port_cnt {
            let (port, ports) = (device.port, attr.phys_port_cnt);
            return Err(DeviceError::NoPort { device: wanted, port, ports });
        }
        if attr.atomic_cap == ib::IBV_ATOMIC_NONE {
            return Err(DeviceError::NoAtomics { device: wanted });
        }
        device.global_atomics = attr.atomic_cap == ib::IBV_ATOMIC_GLOB;
        device.depth = attr.max_qp_rd_atom.clamp(1, 16) as u8;
        device.max_wr = u32::try_from(attr.max_qp_wr).unwrap_or(0);
        device.look_at_port()?;
        device.find_address(choice.gid_index)?;
        Ok(device)
    }

    fn look_at_port(&mut self) -> Result<(), DeviceError> {
        // SAFETY: all numbers, for which zero is a value.
        let mut port: ib::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and a place for what is asked for.
        if unsafe { (self.verbs.ibv_query_port)(self.context.as_ptr(), self.port, &raw mut port) } != 0 {
            return Err(self.failed("asking for the port"));
        }
        if port.state != ib::IBV_PORT_ACTIVE {
            let state = if port.state == ib::IBV_PORT_DOWN { "down" } else { "not active yet" };
            return Err(DeviceError::PortDown {
                device: self.name.clone(),
                port: self.port,
                state: state.to_owned(),
            });
        }
        self.lid = port.lid;
        self.mtu = port.active_mtu;
        Ok(())
    }

    fn find_address(&mut self, index: Option<u8>) -> Result<(), DeviceError> {
        let candidates: Vec<u8> = index.map_or_else(|| (0..16).collect(), |index| vec![index]);
        let mut first = None;
        for index in candidates {
            let Some(gid) = self.address(index) else { continue };
            let best = self.is_roce_v2(index) && gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            if best || first.is_none() {
                first = Some((index, gid));
            }
            if best {
                break;
            }
        }
        let none = || DeviceError::NoAddress {
            device: self.name.clone(),
            port: self.port,
            index: index.unwrap_or(0),
        };
        (self.gid_index, self.gid) = first.ok_or_else(none)?;
        Ok(())
    }

    fn address(&self, index: u8) -> Option<[u8; 16]> {
        let mut gid = ib::ibv_gid { raw: [0; 16] };
        let (context, index) = (self.context.as_ptr(), i32::from(index));
        // SAFETY: an open context, and a place for the address.
        let failed = unsafe { (self.verbs.ibv_query_gid)(context, self.port, index, &raw mut gid) };
        (failed == 0 && gid.raw != [0; 16]).then_some(gid.raw)
    }

    /// libibverbs of older distributions cannot say; the kernel does.
    fn is_roce_v2(&self, index: u8) -> bool {
        let path = format!("/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{index}", self.name, self.port);
        fs::read_to_string(path).is_ok_and(|kind| kind.trim() == "RoCE v2")
    }

    /// The functions that need no system call.
    pub(super) fn ops(&self) -> &ib::ibv_context_ops {
        // SAFETY: an open context; the table does not change while it is open.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// The system's last error as one of this device.
    pub(super) fn failed(&self, what: &'static str) -> DeviceError {
        DeviceError::System { what, device: self.name.clone(), error: io::Error::last_os_error() }
    }
}
