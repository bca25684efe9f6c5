//! An endpoint that leaves no marks, for a lock inside a lock: DSLR's marks promise that nothing but DSLR's own locals
//! matters from there on, which is not so while a request of Citron is under way around it.

use lockwright_fabric::Endpoint;

/// The endpoint it wraps, but for marks.
#[derive(Clone, Debug)]
pub(super) struct Unmarked<E>(pub(super) E);

impl<E: Endpoint> Endpoint for Unmarked<E> {
    lockwright_fabric::pass_on!(0: me home capabilities go wait_until send send_datagram recv_by now passed alarm sleep random observe);
}
