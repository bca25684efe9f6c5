//! Looking into a space behind a decider: its control plane asks the clients, who alone know.

use super::link::LinkOptions;
use super::thread::connect;
use super::wire::{Answer, Pieces, Request, Unacked};
use crate::error::OpenError;
use crate::inspect::{BreakError, Entry, Heat, InspectError};
use crate::wire::SERVER;
use crate::wire::listing::Reader;
use lockwright_fabric::Endpoint;
use std::time::Duration;

/// A question costs a session of its own: people ask, not programs.
#[derive(Debug)]
pub(crate) struct FissInspector(LinkOptions);

/// The question's number.
const ID: u64 = 1;

impl FissInspector {
    pub(crate) fn open(options: LinkOptions) -> Result<Self, OpenError> {
        let space = format!("fiss://{}/{}", options.decider, String::from_utf8_lossy(&options.space));
        let inspector = Self(options);
        inspector.status().map_err(|why| OpenError::Failed { space, why })?;
        Ok(inspector)
    }

    /// How the decider is, as a JSON object.
    pub(crate) fn status(&self) -> Result<String, String> {
        let bytes = self.ask(&Request::Status { id: ID })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        let bytes = self.ask(&Request::List { id: ID, space: self.0.space.clone() });
        let bytes = bytes.map_err(InspectError::Space)?;
        let mut reader = Reader(&bytes);
        let mut entries: Vec<Entry> = std::iter::from_fn(|| reader.entry()).collect();
        entries.sort_by(|one, two| {
            (&one.name, one.state).cmp(&(&two.name, two.state)).then(two.age.cmp(&one.age))
        });
        Ok(entries)
    }

    pub(crate) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        self.entries().map(|entries| Heat::of(&entries))
    }

    pub(crate) fn break_grant(&self) -> Result<(), BreakError> {
        let why = "a decider cannot take a lock away from its holder: end the holder's process";
        Err(InspectError::Space(why.to_owned()).into())
    }

    fn ask(&self, request: &Request) -> Result<Vec<u8>, String> {
        let patience = self.0.transport.timeout();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let asked = tokio::time::timeout(patience, ask(&self.0, request)).await;
            asked.map_err(|_| crate::remote::link::late(patience))?
        })
    }
}

async fn ask(options: &LinkOptions, request: &Request) -> Result<Vec<u8>, String> {
    let (session, _) = connect(options, Duration::ZERO).await?;
    for message in Unacked::default().say(request) {
        session.tell(SERVER, &message);
    }
    let endpoint = session.readable().ok_or("a decider is reached by TCP")?;
    let mut pieces = Pieces::default();
    loop {
        let message = endpoint.recv(|_, message| Some(message.clone())).await;
        match pieces.add(message).as_ref().and_then(Answer::decode) {
            Some(Answer::Bytes { bytes, .. }) => {
                session.close();
                return Ok(bytes);
            }
            Some(Answer::Refused { why, .. }) => return Err(why),
            _ => {}
        }
    }
}
