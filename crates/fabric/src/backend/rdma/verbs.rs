//! Owned verbs objects: protection domain, registered memory, completion queue, shared receive queue. Queue pairs are in `queue_pair.rs`.
//!
//! Each object holds what it was made on, so that nothing is destroyed before what is built upon it.

#![allow(unsafe_code)]

use super::device::{Device, DeviceError};
use super::ffi::{self as ib, Verbs};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Completions that are taken at once.
pub(super) const POLL_BATCH: usize = 32;

/// Words of a page.
const PAGE_WORDS: usize = 512;

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
any_thread!(ProtectionDomain Buffer RemoteMemory CompletionQueue SharedReceiveQueue);

/// A protection domain.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pub(super) pd: NonNull<ib::ibv_pd>,
}

impl ProtectionDomain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: an open context.
        let pd = NonNull::new(unsafe { (device.verbs.ibv_alloc_pd)(device.context.as_ptr()) });
        let pd = pd.ok_or_else(|| device.failed("making a protection domain"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    fn verbs(&self) -> &'static Verbs {
        self.device.verbs
    }

    /// Registers `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The NIC and, as far as `access` goes, other machines read and write them until they are deregistered: until then they
    /// are there, and this process reaches them by atomics only.
    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: u32,
    ) -> Result<NonNull<ib::ibv_mr>, DeviceError> {
        // SAFETY: a live domain; the rest is the caller's promise.
        let mr = unsafe { (self.verbs().ibv_reg_mr)(self.pd.as_ptr(), start.cast(), bytes, access as i32) };
        NonNull::new(mr).ok_or_else(|| self.device.failed("registering memory (see `ulimit -l`)"))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made in it holds an `Arc` of this.
        unsafe { (self.verbs().ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Memory is registered in whole pages.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE_WORDS]);

/// Memory of this process that its own NIC reads and writes: results, messages.
///
/// Its words are atomics. To read what the NIC is still writing gives old or new words, and is no data race.
#[derive(Debug)]
pub(super) struct Buffer {
    domain: Arc<ProtectionDomain>,
    mr: NonNull<ib::ibv_mr>,
    pages: Box<[Page]>,
}

impl Buffer {
    /// At least `bytes` bytes, all zero.
    pub(super) fn new(domain: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self, DeviceError> {
        let count = bytes.div_ceil(size_of::<Page>()).max(1);
        let pages: Box<[Page]> =
            (0..count).map(|_| Page([const { AtomicU64::new(0) }; PAGE_WORDS])).collect();
        let (start, bytes) = (pages.as_ptr().cast::<u8>().cast_mut(), size_of_val(&*pages));
        // SAFETY: the pages are owned by what is returned, which deregisters them before they go; they are atomics.
        let mr = unsafe { domain.register(start, bytes, ib::IBV_ACCESS_LOCAL_WRITE) }?;
        Ok(Self { domain: Arc::clone(domain), mr, pages })
    }

    /// `bytes` bytes at `offset`, for a work request.
    pub(super) fn piece(&self, offset: usize, bytes: usize) -> ib::ibv_sge {
        assert!(offset + bytes <= size_of_val(&*self.pages), "a piece of a buffer lies inside it");
        let addr = self.pages.as_ptr() as u64 + offset as u64;
        // SAFETY: the registration lives as long as `self`.
        ib::ibv_sge { addr, length: bytes as u32, lkey: unsafe { self.mr.as_ref() }.lkey }
    }

    /// The words from `offset` on.
    fn words(&self, offset: usize) -> impl Iterator<Item = &AtomicU64> {
        assert!(offset.is_multiple_of(8), "what lies in a buffer starts at a word");
        let (page, word) = (offset / 8 / PAGE_WORDS, offset / 8 % PAGE_WORDS);
        self.pages[page..].iter().flat_map(|page| &page.0).skip(word)
    }

    /// Copies out what is at `offset`: what the NIC put there, once it has said that it is done.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= size_of_val(&*self.pages), "a piece of a buffer lies inside it");
        for (bytes, word) in into.chunks_mut(8).zip(self.words(offset)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..bytes.len()]);
        }
    }

    /// Copies `from` to `offset`, and zeros up to the next word.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= size_of_val(&*self.pages), "a piece of a buffer lies inside it");
        for (bytes, word) in from.chunks(8).zip(self.words(offset)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. What is still posted for it finds no such key.
        unsafe { (self.domain.verbs().ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Lock memory that one remote client may read, write and change atomically.
#[derive(Debug)]
pub(super) struct RemoteMemory {
    domain: Arc<ProtectionDomain>,
    mr: NonNull<ib::ibv_mr>,
    start: u64,
}

impl RemoteMemory {
    /// Lends `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// They stay where they are until this is dropped, and this process reaches them by atomics only.
    pub(super) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Self, DeviceError> {
        let access = ib::IBV_ACCESS_LOCAL_WRITE
            | ib::IBV_ACCESS_REMOTE_READ
            | ib::IBV_ACCESS_REMOTE_WRITE
            | ib::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: as the caller promises; `drop` deregisters them.
        let mr = unsafe { domain.register(start.as_ptr(), bytes, access) }?;
        Ok(Self { domain: Arc::clone(domain), mr, start: start.as_ptr() as u64 })
    }

    /// The address and the key that the client needs.
    pub(super) fn key(&self) -> (u64, u32) {
        // SAFETY: the registration lives as long as `self`.
        (self.start, unsafe { self.mr.as_ref() }.rkey)
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. Verbs that come later find no such key.
        unsafe { (self.domain.verbs().ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// A completion queue and its completion channel.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    pub(super) cq: NonNull<ib::ibv_cq>,
    channel: NonNull<ib::ibv_comp_channel>,
}

impl CompletionQueue {
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: an open context.
        let channel =
            NonNull::new(unsafe { (device.verbs.ibv_create_comp_channel)(device.context.as_ptr()) });
        let channel = channel.ok_or_else(|| device.failed("making a completion channel"))?;
        // SAFETY: an open context and the channel made just now.
        let cq = unsafe {
            let context = device.context.as_ptr();
            (device.verbs.ibv_create_cq)(context, entries as i32, null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.failed("making a completion queue");
            // SAFETY: made just now, and nobody uses it.
            unsafe { (device.verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        Ok(Arc::new(Self { device: Arc::clone(device), cq, channel }))
    }

    /// Takes up to [`POLL_BATCH`] completions and hands each to `each`; how many there were.
    pub(super) fn poll(&self, mut each: impl FnMut(&ib::ibv_wc)) -> usize {
        // SAFETY: all numbers, for which zero is a value.
        let mut wcs: [ib::ibv_wc; POLL_BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: a live queue of the device whose table it is, and room for a batch of completions.
        let count =
            unsafe { (self.device.ops().poll_cq)(self.cq.as_ptr(), POLL_BATCH as i32, wcs.as_mut_ptr()) };
        let count = usize::try_from(count).unwrap_or(0);
        wcs[..count].iter().for_each(&mut each);
        count
    }

    /// Asks for a notification at the next completion.
    pub(super) fn request_notification(&self) {
        // SAFETY: a live queue of the device whose table it is.
        unsafe { (self.device.ops().req_notify_cq)(self.cq.as_ptr(), 0) };
    }

    /// Becomes readable at a notification.
    pub(super) fn notification_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Acknowledges a notification. Blocks unless the descriptor is readable.
    pub(super) fn acknowledge(&self) {
        let (verbs, mut cq, mut context) = (self.device.verbs, null_mut(), null_mut());
        // SAFETY: a live channel and places for what it says; every event is acknowledged.
        unsafe {
            if (verbs.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs on it hold an `Arc` of this.
        unsafe {
            (self.device.verbs.ibv_destroy_cq)(self.cq.as_ptr());
            (self.device.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// The receives that all queue pairs of an event loop share.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    domain: Arc<ProtectionDomain>,
    pub(super) srq: NonNull<ib::ibv_srq>,
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, receives: u32) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: numbers and a pointer that may be null.
        let mut init: ib::ibv_srq_init_attr = unsafe { std::mem::zeroed() };
        init.attr.max_wr = receives;
        init.attr.max_sge = 1;
        // SAFETY: a live domain and what to make.
        let srq = unsafe { (domain.verbs().ibv_create_srq)(domain.pd.as_ptr(), &raw mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| domain.device.failed("making a shared receive queue"))?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), srq }))
    }

    /// Lets the next message land in `piece`.
    pub(super) fn post(&self, id: u64, mut piece: ib::ibv_sge) {
        let mut wr = ib::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a live queue of the device whose table it is, one request, which the library copies, and a place for a bad
        // one. Whatever the piece says, the NIC writes to registered memory only, and that is atomics.
        unsafe { (self.domain.device.ops().post_srq_recv)(self.srq.as_ptr(), &raw mut wr, &raw mut bad) };
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs on it hold an `Arc` of this.
        unsafe { (self.domain.verbs().ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}
