//! Queue pairs: the end of a reliable connection, or, on mlx5 where it is asked for, a DC initiator and target that stand for one.
//!
//! To those who use one there is no difference: it is made, the two sides tell each other its [`PairInfo`], it is connected, and
//! work is posted to it. After an error it never works again.

#![allow(unsafe_code)]

use super::dc::{Initiator, Remote, Target};
use super::device::{Device, DeviceError};
use super::provider::{Ground, LIBRARY, Refused};
use super::raw::{self, Raw};
use super::verbs::{Domain, Queue, Shared};
use super::work::{Work, request};
use rdma_mummy_sys as ib;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock};

/// What the other side needs to know of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PairInfo {
    /// Of a DC pair, its target's.
    pub(super) number: u32,
    /// The first packet's number: random, so that strangers do not guess it.
    pub(super) psn: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// The key of a DC target; zero: it is a reliable connection's end.
    pub(super) dc_key: u64,
}

impl PairInfo {
    /// What has to be made to go with it.
    pub(super) const fn transport(&self) -> Transport {
        if self.dc_key == 0 { Transport::Connected } else { Transport::Dynamic }
    }
}

/// How two sides come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// A reliable connection.
    Connected,
    /// Dynamically connected.
    Dynamic,
}

/// What a queue pair is made on.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) domain: Arc<Domain>,
    pub(super) queue: Arc<Queue>,
    pub(super) shared: Arc<Shared>,
}

impl Base {
    pub(super) fn device(&self) -> &Device {
        &self.domain.device
    }

    /// The same for the calls that only mlx5 has.
    pub(super) fn ground(&self) -> Ground {
        let device = self.device();
        Ground {
            library: &LIBRARY,
            context: device.context,
            pd: self.domain.pd,
            cq: self.queue.cq,
            srq: self.shared.srq,
            port: device.port,
            gid_index: device.gid_index,
            mtu: device.mtu,
            depth: device.mlx5.unwrap_or(1),
        }
    }

    /// A DC target, as the others know it.
    pub(super) fn info_of(&self, target: &Target) -> PairInfo {
        let device = self.device();
        PairInfo { number: target.number, psn: 0, lid: device.lid, gid: device.gid, dc_key: target.key }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pair {
    // Destroyed before what it was made on.
    kind: Kind,
    base: Base,
    pub(super) info: PairInfo,
    /// The other side may reach registered memory of this domain.
    lends: bool,
}

// SAFETY: libibverbs lets any thread use its objects, and locks where that is needed.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

#[derive(Debug)]
enum Kind {
    Connected {
        qp: Connected,
        /// Where it takes entries that we encode.
        raw: Option<Raw>,
    },
    Dynamic {
        initiator: Initiator,
        /// `None`: it only sends, and each time says to whom.
        _target: Option<Target>,
        to: OnceLock<Remote>,
    },
}

impl Pair {
    /// One with `sends` requests under way at most. `lends`: the other side may reach registered memory of its domain.
    pub(super) fn new(
        base: &Base,
        transport: Transport,
        sends: u32,
        lends: bool,
        secrets: Secrets,
    ) -> Result<Self, DeviceError> {
        let device = base.device();
        let sends = sends.min(device.max_wr);
        let refused = |refused: Refused| device.refused(refused);
        let psn = secrets.psn & 0xff_ffff;
        let (kind, info) = match transport {
            Transport::Connected => {
                let (qp, raw) = if device.extended {
                    raw::create(&base.ground(), sends).map(|(qp, raw)| (qp, Some(raw))).map_err(refused)?
                } else {
                    (plain(base, sends)?, None)
                };
                // SAFETY: made just now.
                let number = unsafe { qp.as_ref() }.qp_num;
                let info = PairInfo { number, psn, lid: device.lid, gid: device.gid, dc_key: 0 };
                (Kind::Connected { qp: Connected(qp), raw }, info)
            }
            Transport::Dynamic if device.mlx5.is_none() => {
                return Err(DeviceError::NotDynamic { device: device.name.clone() });
            }
            Transport::Dynamic => {
                let target = Target::new(&base.ground(), secrets.dc_key, lends).map_err(refused)?;
                let info = base.info_of(&target);
                (Self::initiator(base, sends, psn, Some(target))?, info)
            }
        };
        Ok(Self { kind, base: base.clone(), info, lends })
    }

    /// A DC initiator alone. It receives nothing.
    pub(super) fn sender(base: &Base, sends: u32, secrets: Secrets) -> Result<Self, DeviceError> {
        let kind = Self::initiator(base, sends.min(base.device().max_wr), secrets.psn & 0xff_ffff, None)?;
        Ok(Self { kind, base: base.clone(), info: PairInfo::default(), lends: false })
    }

    fn initiator(base: &Base, sends: u32, psn: u32, target: Option<Target>) -> Result<Kind, DeviceError> {
        let initiator = Initiator::new(&base.ground(), sends, psn);
        let initiator = initiator.map_err(|refused| base.device().refused(refused))?;
        Ok(Kind::Dynamic { initiator, _target: target, to: OnceLock::new() })
    }

    /// By which completions of what was posted to it name it.
    pub(super) fn number(&self) -> u32 {
        match &self.kind {
            Kind::Connected { .. } => self.info.number,
            Kind::Dynamic { initiator, .. } => initiator.number(),
        }
    }

    /// Connects to `other`.
    pub(super) fn connect(&self, other: &PairInfo) -> Result<(), DeviceError> {
        let device = self.base.device();
        let connected = match &self.kind {
            Kind::Connected { qp, .. } => qp.connect(device, self.info.psn, other, self.lends),
            Kind::Dynamic { to, .. } => Remote::new(&self.base.ground(), other).map(|remote| {
                let _ = to.set(remote);
            }),
        };
        connected.map_err(|refused| device.refused(refused))
    }

    /// Stops everything: what is under way fails, what comes later is not executed.
    pub(super) fn stop(&self) {
        match &self.kind {
            Kind::Connected { qp, .. } => qp.stop(),
            Kind::Dynamic { initiator, .. } => initiator.stop(),
        }
    }

    /// Posts `works` with one ring of the doorbell, over DC to `to`, if that is not whom it is connected to. `false` if the queue
    /// pair takes them no more.
    pub(super) fn post(&self, works: &[Work], to: Option<&Remote>) -> bool {
        match &self.kind {
            Kind::Connected { raw: Some(raw), .. } => raw.post(works),
            Kind::Connected { qp, raw: None } => qp.post(works),
            Kind::Dynamic { initiator, to: connected, .. } => {
                to.or_else(|| connected.get()).is_some_and(|to| initiator.post(works, to))
            }
        }
    }
}

/// Whether the device has dynamically connected transport: whether a target can be made on it.
pub(super) fn has_dynamic(device: &Arc<Device>) -> bool {
    let made = || -> Result<bool, DeviceError> {
        let (domain, queue) = (Domain::new(device)?, Queue::new(device, 16)?);
        let shared = Shared::new(&domain, 16)?;
        let base = Base { domain, queue, shared };
        Ok(Target::new(&base.ground(), 1, false).is_ok())
    };
    device.mlx5.is_some() && made().unwrap_or(false)
}

/// What strangers should not guess.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secrets {
    pub(super) psn: u32,
    /// Not zero.
    pub(super) dc_key: u64,
}

impl Secrets {
    pub(super) fn random() -> Self {
        let (mut psn, mut key) = ([0; 4], [0; 8]);
        // Without randomness they are merely guessable; connections work all the same.
        let _ = getrandom::getrandom(&mut psn);
        let _ = getrandom::getrandom(&mut key);
        Self { psn: u32::from_le_bytes(psn), dc_key: u64::from_le_bytes(key).max(1) }
    }
}

fn plain(base: &Base, sends: u32) -> Result<NonNull<ib::ibv_qp>, DeviceError> {
    // SAFETY: numbers and pointers that may be null.
    let mut init: ib::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    init.send_cq = base.queue.cq.as_ptr();
    init.recv_cq = base.queue.cq.as_ptr();
    init.srq = base.shared.srq.as_ptr();
    init.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
    init.cap.max_send_wr = sends;
    init.cap.max_send_sge = 1;
    // SAFETY: a live domain, queues that are kept, and what to make.
    let qp = NonNull::new(unsafe { ib::ibv_create_qp(base.domain.pd.as_ptr(), &raw mut init) });
    qp.ok_or_else(|| base.device().failed("making a queue pair"))
}

/// A reliable connection's end.
#[derive(Debug)]
struct Connected(NonNull<ib::ibv_qp>);

impl Connected {
    fn connect(&self, device: &Device, psn: u32, other: &PairInfo, lends: bool) -> Result<(), Refused> {
        use ib::{ibv_qp_attr_mask as with, ibv_qp_state as state};
        let mut attr = LIBRARY.prepare(self.0, device.port, lends, "preparing a queue pair")?;

        attr.qp_state = state::IBV_QPS_RTR;
        attr.path_mtu = device.mtu;
        attr.dest_qp_num = other.number;
        attr.rq_psn = other.psn;
        attr.max_dest_rd_atomic = device.depth;
        // 0.64 ms until a sender that found no receive posted tries again.
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid.raw = other.gid;
        attr.ah_attr.grh.sgid_index = device.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.dlid = other.lid;
        attr.ah_attr.port_num = device.port;
        let ready = with::IBV_QP_STATE
            | with::IBV_QP_AV
            | with::IBV_QP_PATH_MTU
            | with::IBV_QP_DEST_QPN
            | with::IBV_QP_RQ_PSN
            | with::IBV_QP_MAX_DEST_RD_ATOMIC
            | with::IBV_QP_MIN_RNR_TIMER;
        LIBRARY.modify(
            self.0,
            &mut attr,
            ready,
            "connecting a queue pair (is the peer's address reachable?)",
        )?;

        LIBRARY.start(self.0, &mut attr, (psn, device.depth), "starting a queue pair")
    }

    fn stop(&self) {
        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_ERR;
        let state = ib::ibv_qp_attr_mask::IBV_QP_STATE;
        let _ = LIBRARY.modify(self.0, &mut attr, state, "stopping a queue pair");
    }

    fn post(&self, works: &[Work]) -> bool {
        let mut pieces: Vec<_> = works.iter().map(|work| work.piece).collect();
        let mut requests: Vec<_> =
            works.iter().zip(&mut pieces).map(|(work, piece)| request(work, piece)).collect();
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a list of requests that lives until the library has copied it.
        unsafe { ib::ibv_post_send(self.0.as_ptr(), requests.as_mut_ptr(), &raw mut bad) == 0 }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // SAFETY: made by `plain` or `raw::create`, and nobody posts to it any more.
        unsafe { ib::ibv_destroy_qp(self.0.as_ptr()) };
    }
}
