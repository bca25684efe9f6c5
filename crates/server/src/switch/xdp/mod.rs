//! The decider as a program in the kernel, at the driver of a network interface (XDP): loads it, and writes and reads its
//! registers.
//!
//! `decider.bpf.c` is the program and `decider.bpf.o` what clang makes of it (`cargo xtask xdp --build`), so that loading it
//! needs no compiler. It is attached by links that belong to this process: however that ends, the program is gone.
//!
//! Registers say which epoch they are of, and those of an earlier one count as empty: a recovery writes those of locks that are
//! held, and then the new epoch. Packets that are on their way through the program meanwhile are of the earlier epoch, and
//! change nothing of a later one.

mod registers;
#[cfg(test)]
mod tests;

use super::core::Counts;
use super::kernel::Elsewhere;
use aya::maps::lpm_trie::{Key as LpmKey, LpmTrie};
use aya::maps::xdp::XdpMapError;
use aya::maps::{Array, DevMapHash, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use lockwright_fabric::backend::tcp::Subnet;
use lockwright_locks::fisslock::datagram::{Key, Limits};
use lockwright_locks::fisslock::{Decider, Shipped};
#[cfg(test)]
use registers::LANES;
use registers::{CONFIG, GROUP, LOCKS_PER_GROUP, MAX_LANES, PEER, STAMP};
use std::net::{IpAddr, Ipv4Addr};

/// The program, as clang has made it. Aligned for the ELF reader.
static OBJECT: &[u8] = aya::include_bytes_aligned!("decider.bpf.o");
/// Replace a register array's element under its own lock (`BPF_F_LOCK`).
const UNDER_LOCK: u64 = 4;

/// Why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum XdpError {
    #[error("the kernel does not take the program: {0}")]
    Load(#[from] EbpfError),
    #[error("{0}")]
    Program(#[from] ProgramError),
    #[error("its registers: {0}")]
    Map(#[from] MapError),
    #[error("its ports: {0}")]
    Port(#[from] XdpMapError),
    #[error("there is no interface {0}")]
    NoInterface(String),
    #[error("interface {interface}: {why}")]
    Attach { interface: String, why: String },
    #[error("it has {0}, which this version of the program does not")]
    Missing(&'static str),
}

/// The program, loaded.
pub(super) struct Program {
    // Before the maps: nothing runs any more when they go.
    links: Vec<FdLink>,
    object: Ebpf,
    limits: Limits,
    config: Array<MapData, [u8; CONFIG]>,
    groups: Array<MapData, [u8; GROUP]>,
    #[cfg(test)]
    lanes: Array<MapData, [u8; LANES]>,
    peers: Array<MapData, [u8; PEER]>,
    stamps: Array<MapData, [u8; STAMP]>,
    counters: PerCpuArray<MapData, [u64; 6]>,
    copies: DevMapHash<MapData>,
    port: u16,
    /// That of the registers.
    epoch: u32,
    restricted: bool,
    place: String,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("links", &self.links)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Loads it, closed, for datagrams to `port` of `addresses`.
    /// If any are `allowed`, packets from elsewhere are dropped.
    pub(super) fn load(
        limits: Limits,
        port: u16,
        addresses: &[Ipv4Addr],
        allowed: &[Subnet],
    ) -> Result<Self, XdpError> {
        assert!(limits.lanes as usize <= MAX_LANES, "{limits:?}");
        let groups = (limits.locks as usize).div_ceil(LOCKS_PER_GROUP);
        let mut object = EbpfLoader::new().map_max_entries("groups", groups as u32).load(OBJECT)?;
        let programs: Vec<String> = object.programs().map(|(name, _)| name.to_owned()).collect();
        for name in programs.iter().filter(|name| cfg!(test) || !name.ends_with("_alone")) {
            let program = object.program_mut(name).ok_or(XdpError::Missing("a program"))?;
            <&mut Xdp>::try_from(program)?.load()?;
        }
        let mut map = |name: &'static str| object.take_map(name).ok_or(XdpError::Missing(name));
        let mut own: HashMap<_, [u8; 4], u32> = HashMap::try_from(map("own")?)?;
        for address in addresses {
            own.insert(address.octets(), 1, 0)?;
        }
        let mut subnets: LpmTrie<_, [u8; 4], u32> = LpmTrie::try_from(map("allowed")?)?;
        for subnet in allowed {
            if let (IpAddr::V4(ip), bits) = subnet.prefix() {
                subnets.insert(&LpmKey::new(bits.into(), ip.octets()), 1, 0)?;
            }
        }
        let mut loaded = Self {
            links: Vec::new(),
            config: Array::try_from(map("config")?)?,
            groups: Array::try_from(map("groups")?)?,
            #[cfg(test)]
            lanes: Array::try_from(map("lanes")?)?,
            peers: Array::try_from(map("peers")?)?,
            stamps: Array::try_from(map("stamps_map")?)?,
            counters: PerCpuArray::try_from(map("counters")?)?,
            copies: DevMapHash::try_from(map("copies")?)?,
            object,
            limits,
            port,
            epoch: 0,
            restricted: !allowed.is_empty(),
            place: "the kernel (XDP)".to_owned(),
        };
        loaded.configure(0, true)?;
        Ok(loaded)
    }

    /// Attaches it to an interface: at its driver if that can do it, else in the network stack.
    pub(super) fn attach(&mut self, interface: &str) -> Result<(), XdpError> {
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|_| XdpError::NoInterface(interface.to_owned()))?;
        let wrong = |why: String| XdpError::Attach { interface: interface.to_owned(), why };
        let ports = self.links.len() as u32;
        for (at, name) in ["grant_copy", "forward_copy"].into_iter().enumerate() {
            let program = self.object.program(name).ok_or(XdpError::Missing("a program"))?;
            let program =
                <&Xdp>::try_from(program)?.fd()?.try_clone().map_err(|error| wrong(error.to_string()))?;
            self.copies.insert(2 * ports + at as u32, index, Some(&program), 0)?;
        }
        let program = self.object.program_mut("decide").ok_or(XdpError::Missing("a program"))?;
        let program = <&mut Xdp>::try_from(program)?;
        let at_driver = program.attach_to_if_index(index, XdpMode::Driver);
        let by = if at_driver.is_ok() { "at its driver" } else { "in the network stack, which is slower" };
        let link = at_driver
            .or_else(|_| program.attach_to_if_index(index, XdpMode::Skb))
            .map_err(|error| wrong(said(&error)))?;
        let link = program.take_link(link)?;
        // The older way of attaching outlives a killed process.
        let link =
            FdLink::try_from(link).map_err(|_| wrong("the kernel is too old (5.9 has links)".to_owned()))?;
        self.links.push(link);
        self.place = format!("{}, {interface} {by}", self.place);
        Ok(())
    }

    fn configure(&mut self, epoch: u32, closed: bool) -> Result<(), MapError> {
        let config = registers::config(epoch, closed, self.limits, self.port, self.restricted);
        self.config.set(0, config, 0)
    }

    /// A recovery's registers, of an epoch that was not here before. Those of locks that nobody holds, and of lanes, are those of
    /// any later epoch.
    fn write(&mut self, decider: &Decider<Shipped>) -> Result<(), XdpError> {
        let (pipeline, once) = decider.registers();
        let epoch = once.epoch();
        let empty = registers::empty_group(epoch);
        self.configure(0, true)?;
        for first in (0..self.limits.locks as usize).step_by(LOCKS_PER_GROUP) {
            let last = (first + LOCKS_PER_GROUP).min(self.limits.locks as usize);
            let group = registers::group(epoch, (first..last).map(|lid| pipeline.registers(lid)));
            if group != empty {
                self.groups.set((first / LOCKS_PER_GROUP) as u32, group, UNDER_LOCK)?;
            }
        }
        self.stamps.set(0, registers::stamp(once.stamp()), UNDER_LOCK)?;
        self.configure(epoch, false)?;
        self.epoch = epoch;
        Ok(())
    }
}

/// All that an error has to say.
pub(super) fn said(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        said = format!("{said}: {error}");
        source = error.source();
    }
    said
}

impl Elsewhere for Program {
    fn place(&self) -> &str {
        &self.place
    }

    fn load(&mut self, decider: &Decider<Shipped>) {
        if let Err(error) = self.write(decider) {
            tracing::error!(error = said(&error), "the registers cannot be written: nothing is granted");
        }
    }

    fn raise_stamp(&mut self, stamp: u64) {
        // A whole block above: what is granted meanwhile stays below.
        if stamp > self.stamp()
            && let Err(error) = self.stamps.set(0, registers::stamp(stamp), UNDER_LOCK)
        {
            tracing::error!(error = said(&error), "stamps cannot be raised");
        }
    }

    fn stamp(&self) -> u64 {
        self.stamps.get(&0, UNDER_LOCK).map_or(0, |value| registers::stamp_of(&value))
    }

    fn is_free(&self, lid: u64) -> bool {
        let (group, at) = (lid / LOCKS_PER_GROUP as u64, lid as usize % LOCKS_PER_GROUP);
        let group = self.groups.get(&(group as u32), UNDER_LOCK);
        // What is of an earlier epoch counts as free.
        group.is_ok_and(|group| registers::is_free(&group, at) || registers::epoch_of(&group) < self.epoch)
    }

    fn peer(&mut self, mid: u8, key: Option<Key>) {
        if let Err(error) = self.peers.set(u32::from(mid), registers::peer(key), UNDER_LOCK) {
            tracing::error!(mid, error = said(&error), "a client's key cannot be written");
        }
    }

    fn counts(&self) -> Counts {
        let Ok(values) = self.counters.get(&0, 0) else { return Counts::default() };
        let sum = |at: usize| values.iter().map(|cpu| cpu[at]).sum();
        Counts {
            received: sum(0),
            sent: sum(1),
            grants: sum(2),
            passed_on: sum(3),
            malformed: sum(4),
            forged: sum(5),
            astray: 0,
            recoveries: 0,
        }
    }
}
