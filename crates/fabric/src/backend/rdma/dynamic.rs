//! A client's letters to other clients by DC: one initiator that sends to all of them, and one target where theirs arrive.
//!
//! So N clients have N of each, whoever writes to whom. The price is that they share a fate: a letter that cannot be delivered puts
//! the initiator into error, and those under way to others fail with it. It is replaced at once; the target stays, and what
//! others know of it with it. Verbs have a pair of their own, which a dead peer does not break.

use super::dc::Target;
use super::device::DeviceError;
use super::letter;
use super::lines::Address;
use super::pair::{PairInfo, Secrets};
use super::station::Station;
use super::wire::Wire;
use crate::message::Message;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Dynamic {
    /// Over the initiator.
    wire: Arc<Wire>,
    target: Target,
    // After what was made on it.
    station: Arc<Station>,
}

impl Dynamic {
    pub(super) fn open(station: &Arc<Station>) -> Result<Self, DeviceError> {
        let target = Target::new(&station.base.ground(), Secrets::random().dc_key, false);
        let target = target.map_err(|refused| station.device().refused(refused))?;
        let wire = Wire::new(station, station.sender()?);
        Ok(Self { wire, target, station: Arc::clone(station) })
    }

    /// Where letters for this client arrive.
    pub(super) fn info(&self) -> PairInfo {
        self.station.base.info_of(&self.target)
    }

    /// Sends a letter; whether it has arrived.
    pub(super) async fn send(&self, to: &Address, message: &Message) -> bool {
        self.wire.send_to(&to.remote, &letter::encode_with_pass(to.pass, message)).await
    }

    /// The queue pair of this number is in error. `false` if that is known, or it is not the initiator.
    pub(super) fn doubt(&self, pair: u32) -> bool {
        self.wire.doubt(pair)
    }

    /// Another initiator. Not to be called by whoever takes completions.
    pub(super) fn renew(&self) {
        self.wire.cut();
        match self.station.sender() {
            Ok(sender) => self.wire.set(sender),
            Err(_) => self.wire.close(),
        }
    }

    /// Nothing is sent any more.
    pub(super) fn close(&self) {
        self.wire.close();
    }
}
