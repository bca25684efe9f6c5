//! Owned verbs objects: protection domain, registered memory, completion queue, shared receive queue. Queue pairs are in `pair.rs`.
//!
//! Each object holds what it was made on, so that nothing is destroyed before what is built upon it.

#![allow(unsafe_code)]

use super::device::{Device, DeviceError};
use rdma_mummy_sys as ib;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Completions that are taken at once.
pub(super) const HANDFUL: usize = 32;

/// Registered memory starts at a page.
const PAGE: usize = 4096;

macro_rules! any_thread {
    ($($name:ident)+) => {
        $(
            // SAFETY: libibverbs lets any thread use its objects, and locks where that is needed.
            unsafe impl Send for $name {}
            // SAFETY: as above.
            unsafe impl Sync for $name {}
        )+
    };
}
any_thread!(Domain Buffer Lent Queue Shared);

/// A protection domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) pd: NonNull<ib::ibv_pd>,
}

impl Domain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: an open context.
        let pd = NonNull::new(unsafe { ib::ibv_alloc_pd(device.context.as_ptr()) });
        let pd = pd.ok_or_else(|| device.failed("making a protection domain"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: u32,
    ) -> Result<NonNull<ib::ibv_mr>, DeviceError> {
        // SAFETY: the caller owns `bytes` bytes from `start` on and keeps them while they are registered.
        let mr = unsafe { ib::ibv_reg_mr(self.pd.as_ptr(), start.cast(), bytes, access as i32) };
        NonNull::new(mr).ok_or_else(|| self.device.failed("registering memory (see `ulimit -l`)"))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything made in it holds an `Arc` of this.
        unsafe { ib::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// Memory of this process that its own NIC reads and writes: results, letters.
#[derive(Debug)]
pub(super) struct Buffer {
    _domain: Arc<Domain>,
    mr: NonNull<ib::ibv_mr>,
    start: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Self, DeviceError> {
        let layout = Layout::from_size_align(bytes.max(PAGE), PAGE).expect("a buffer of a few pages");
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let access = ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        let registered = domain.register(start.as_ptr(), layout.size(), access);
        let mr = registered.inspect_err(|_| {
            // SAFETY: allocated just now, with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        })?;
        Ok(Self { _domain: Arc::clone(domain), mr, start, layout })
    }

    /// `bytes` bytes at `offset`, for a work request.
    pub(super) fn piece(&self, offset: usize, bytes: usize) -> ib::ibv_sge {
        assert!(offset + bytes <= self.layout.size(), "a piece of a buffer lies inside it");
        // SAFETY: inside the allocation, as was just asserted.
        let addr = unsafe { self.start.add(offset) }.as_ptr() as u64;
        // SAFETY: the registration lives as long as `self`.
        ib::ibv_sge { addr, length: bytes as u32, lkey: unsafe { self.mr.as_ref() }.lkey }
    }

    /// Copies out what is at `offset`. The NIC must be done with it.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.layout.size(), "a piece of a buffer lies inside it");
        // SAFETY: inside the allocation; the completion that the caller has seen says that the NIC wrote all of it.
        unsafe { self.start.add(offset).as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Copies `from` to `offset`. The NIC must not be using it.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.layout.size(), "a piece of a buffer lies inside it");
        // SAFETY: inside the allocation, and the caller owns the slot.
        unsafe { self.start.add(offset).as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: registered and allocated in `new`; queue pairs that use it are destroyed before it is dropped.
        unsafe {
            ib::ibv_dereg_mr(self.mr.as_ptr());
            dealloc(self.start.as_ptr(), self.layout);
        }
    }
}

/// Lock memory that one remote client may read, write and change atomically.
#[derive(Debug)]
pub(super) struct Lent {
    _domain: Arc<Domain>,
    mr: NonNull<ib::ibv_mr>,
    start: u64,
}

impl Lent {
    /// Lends `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// They stay where they are until this is dropped, and this process reaches them by atomics only.
    pub(super) unsafe fn new(
        domain: &Arc<Domain>,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Self, DeviceError> {
        use ib::ibv_access_flags as may;
        let access = may::IBV_ACCESS_LOCAL_WRITE.0
            | may::IBV_ACCESS_REMOTE_READ.0
            | may::IBV_ACCESS_REMOTE_WRITE.0
            | may::IBV_ACCESS_REMOTE_ATOMIC.0;
        let mr = domain.register(start.as_ptr(), bytes, access)?;
        Ok(Self { _domain: Arc::clone(domain), mr, start: start.as_ptr() as u64 })
    }

    /// The address and the key that the client needs.
    pub(super) fn key(&self) -> (u64, u32) {
        // SAFETY: the registration lives as long as `self`.
        (self.start, unsafe { self.mr.as_ref() }.rkey)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. Verbs that come later find no such key.
        unsafe { ib::ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// A completion queue and the channel on which it rings.
#[derive(Debug)]
pub(super) struct Queue {
    _device: Arc<Device>,
    pub(super) cq: NonNull<ib::ibv_cq>,
    channel: NonNull<ib::ibv_comp_channel>,
}

impl Queue {
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: an open context.
        let channel = NonNull::new(unsafe { ib::ibv_create_comp_channel(device.context.as_ptr()) });
        let channel = channel.ok_or_else(|| device.failed("making a completion channel"))?;
        // SAFETY: an open context and the channel made just now.
        let cq = unsafe {
            ib::ibv_create_cq(device.context.as_ptr(), entries as i32, null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.failed("making a completion queue");
            // SAFETY: made just now, and nobody uses it.
            unsafe { ib::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        Ok(Arc::new(Self { _device: Arc::clone(device), cq, channel }))
    }

    /// Takes up to [`HANDFUL`] completions and hands each to `each`; how many there were.
    pub(super) fn poll(&self, mut each: impl FnMut(&ib::ibv_wc)) -> usize {
        // SAFETY: all numbers, for which zero is a value.
        let mut wcs: [ib::ibv_wc; HANDFUL] = unsafe { std::mem::zeroed() };
        // SAFETY: a live queue and room for a handful of completions.
        let count = unsafe { ib::ibv_poll_cq(self.cq.as_ptr(), HANDFUL as i32, wcs.as_mut_ptr()) };
        let count = usize::try_from(count).unwrap_or(0);
        wcs[..count].iter().for_each(&mut each);
        count
    }

    /// Asks for a ring at the next completion.
    pub(super) fn ask(&self) {
        // SAFETY: a live queue.
        unsafe { ib::ibv_req_notify_cq(self.cq.as_ptr(), 0) };
    }

    /// What becomes readable when it rings.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes note of a ring. Only when the bell is readable: it would block.
    pub(super) fn hear(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: a live channel and places for what it says; every event is acknowledged.
        unsafe {
            if ib::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                ib::ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs on it hold an `Arc` of this.
        unsafe {
            ib::ibv_destroy_cq(self.cq.as_ptr());
            ib::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// Receives that all queue pairs of a station share.
#[derive(Debug)]
pub(super) struct Shared {
    _domain: Arc<Domain>,
    pub(super) srq: NonNull<ib::ibv_srq>,
}

impl Shared {
    pub(super) fn new(domain: &Arc<Domain>, receives: u32) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: numbers and a pointer that may be null.
        let mut init: ib::ibv_srq_init_attr = unsafe { std::mem::zeroed() };
        init.attr.max_wr = receives;
        init.attr.max_sge = 1;
        // SAFETY: a live domain and what to make.
        let srq = NonNull::new(unsafe { ib::ibv_create_srq(domain.pd.as_ptr(), &raw mut init) });
        let srq = srq.ok_or_else(|| domain.device.failed("making a shared receive queue"))?;
        Ok(Arc::new(Self { _domain: Arc::clone(domain), srq }))
    }

    /// Lets the next message land in `piece`.
    pub(super) fn post(&self, id: u64, mut piece: ib::ibv_sge) {
        let mut wr = ib::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a live queue, one request, and a place for a bad one; the library copies the request.
        unsafe { ib::ibv_post_srq_recv(self.srq.as_ptr(), &raw mut wr, &raw mut bad) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: queue pairs on it hold an `Arc` of this.
        unsafe { ib::ibv_destroy_srq(self.srq.as_ptr()) };
    }
}
