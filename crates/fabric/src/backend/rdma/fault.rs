//! What a completion says when it went wrong, in words that say what to do.

use super::ffi as ib;
use std::fmt;

/// Why work failed: the status of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    status: u32,
    vendor: u32,
}

impl Fault {
    pub(super) const fn new(status: u32, vendor: u32) -> Self {
        Self { status, vendor }
    }

    /// It was swept away by an earlier failure on the same queue pair, or the queue pair was stopped.
    pub(super) const fn is_flush(self) -> bool {
        self.status == ib::IBV_WC_WR_FLUSH_ERR
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.status {
            ib::IBV_WC_WR_FLUSH_ERR => "the queue pair was stopped",
            ib::IBV_WC_REM_ACCESS_ERR => {
                "the host refused the access: the key was revoked, or the word lies outside of what it lends; connect again"
            }
            ib::IBV_WC_REM_INV_REQ_ERR => {
                "the host's NIC takes no such request: are both sides of one version?"
            }
            ib::IBV_WC_REM_OP_ERR => "the host's NIC could not do it",
            ib::IBV_WC_RETRY_EXC_ERR => {
                "the other side's NIC does not answer: is its port up (`rdma link`), and is there a route to it?"
            }
            ib::IBV_WC_RNR_RETRY_EXC_ERR => "the other side takes no messages: it hangs or is overloaded",
            ib::IBV_WC_LOC_PROT_ERR | ib::IBV_WC_LOC_ACCESS_ERR => {
                "this side's own buffer was not registered"
            }
            _ => "the NIC reported an error",
        };
        write!(f, "{words} (status {}, vendor {:#x})", self.status, self.vendor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_what_to_do() {
        assert!(Fault::new(ib::IBV_WC_REM_ACCESS_ERR, 0).to_string().contains("revoked"));
        assert!(Fault::new(ib::IBV_WC_RETRY_EXC_ERR, 3).to_string().contains("rdma link"));
        assert!(Fault::new(ib::IBV_WC_WR_FLUSH_ERR, 0).is_flush());
    }
}
