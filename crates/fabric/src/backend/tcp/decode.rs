//! Bytes to frames. [`decode`] is a pure function that trusts nothing; the tests feed it random bytes.

use super::frame::{
    ClientProcess, Frame, FrameError, HEADER, Hello, MAGIC, MAX_BODY, MAX_TEXT, MAX_VERBS, Refusal, VERSION,
    Welcome,
};
use super::wire::Cursor;
use crate::addr::PeerId;
use crate::verb::RawVerb;
use crate::wait::RawWait;

/// What [`decode`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A frame of so many bytes.
    Frame(Frame, usize),
    /// The beginning of a frame that will have so many bytes.
    Partial(usize),
}

/// Reads the first frame of `bytes`.
///
/// ```
/// use lockwright_fabric::backend::tcp::frame::{Decoded, Frame, decode};
/// let mut bytes = Vec::new();
/// Frame::Cancel { id: 7 }.encode(&mut bytes);
/// assert_eq!(decode(&bytes), Ok(Decoded::Frame(Frame::Cancel { id: 7 }, bytes.len())));
/// assert_eq!(decode(&bytes[..9]), Ok(Decoded::Partial(16)));
/// ```
///
/// # Errors
/// What is wrong with the bytes. What follows cannot be decoded either.
pub fn decode(bytes: &[u8]) -> Result<Decoded, FrameError> {
    let mut head = Cursor(bytes);
    let Ok(length) = head.u32() else { return Ok(Decoded::Partial(HEADER)) };
    let length = length as usize;
    if length > MAX_BODY {
        return Err(FrameError::TooLong(length));
    }
    let size = HEADER + length;
    if bytes.len() < size {
        return Ok(Decoded::Partial(size));
    }
    let (kind, flags) = (head.u8()?, head.u8()?);
    head.zero(2)?;
    let id = head.u64()?;
    let mut body = Cursor(head.bytes(length)?);
    let frame = decode_body(kind, flags, id, &mut body)?;
    body.end()?;
    Ok(Decoded::Frame(frame, size))
}

fn decode_body(kind: u8, flags: u8, id: u64, body: &mut Cursor<'_>) -> Result<Frame, FrameError> {
    let flag = flags & 1 == 1;
    let may_flag = matches!(kind, 0x03 | 0x06 | 0x87);
    let may_id = matches!(kind, 0x03..=0x08 | 0x84..=0x88);
    if flags > 1 || (flag && !may_flag) || (id != 0 && !may_id) {
        return Err(FrameError::Reserved);
    }
    Ok(match kind {
        0x01 => Frame::Hello(hello(body)?),
        0x02 => Frame::Proof(body.array()?),
        0x03 => Frame::Go { id, quiet: flag, verbs: verbs(body)? },
        0x04 => {
            let (wait, timeout_ns) = wait(body)?;
            Frame::Wait { id, wait, timeout_ns }
        }
        0x05 => Frame::Cancel { id },
        0x06 => Frame::Send { id, quiet: flag, to: peer(body)?, message: body.message()? },
        0x07 => Frame::Ping { seen: id },
        0x08 => Frame::Ack { seen: id },
        0x09 => Frame::Goodbye,
        0x81 => Frame::Challenge(body.array()?),
        0x82 => Frame::Welcome(welcome(body)?),
        0x83 => {
            let code = body.u16()?;
            let text_bytes = body.u16()?;
            body.zero(4)?;
            Frame::Refused {
                why: Refusal::from_code(code),
                epoch: body.u64()?,
                text: text(body, text_bytes)?,
            }
        }
        0x84 => {
            let count = body.0.len().div_ceil(16);
            Frame::Done { id, olds: (0..count).map(|_| body.u128()).collect::<Result<_, _>>()? }
        }
        0x85 => {
            let node = body.u16()?;
            body.zero(6)?;
            Frame::NodeLost { id, node }
        }
        0x86 => Frame::PeerLost { id, peer: peer(body)?.0 },
        0x87 => Frame::Waited { id, met: flag, value: body.u128()? },
        0x88 => Frame::Deliver { seq: id, from: peer(body)?, message: body.message()? },
        0x89 => Frame::Pong,
        other => return Err(FrameError::Kind(other)),
    })
}

fn hello(body: &mut Cursor<'_>) -> Result<Hello, FrameError> {
    if body.array()? != MAGIC {
        return Err(FrameError::Magic);
    }
    let version = body.u16()?;
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let name_bytes = body.u16()?;
    Ok(Hello {
        features: body.u32()?,
        session: body.array()?,
        epoch: body.u64()?,
        seen: body.u64()?,
        nonce: body.array()?,
        process: ClientProcess {
            boot: u128::from_le_bytes(body.array()?),
            pid_namespace: body.u64()?,
            time_namespace: body.u64()?,
            start: body.u64()?,
            pid: body.u32()?,
        },
        name: text(body, name_bytes)?,
    })
}

fn welcome(body: &mut Cursor<'_>) -> Result<Welcome, FrameError> {
    let version = body.u16()?;
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let capabilities = body.u16()?;
    let peer = PeerId(body.u32()?);
    let resumed = match body.u32()? {
        0 => false,
        1 => true,
        _ => return Err(FrameError::Reserved),
    };
    if peer.0 == 0 {
        return Err(FrameError::Peer);
    }
    Ok(Welcome {
        capabilities,
        peer,
        resumed,
        max_waits: body.u32()?,
        session: body.array()?,
        epoch: body.u64()?,
        now_ns: body.u64()?,
        heartbeat_ns: body.u64()?,
        grace_ns: body.u64()?,
        proof: body.array()?,
    })
}

fn verbs(body: &mut Cursor<'_>) -> Result<Vec<RawVerb>, FrameError> {
    let count = body.u32()? as usize;
    body.zero(4)?;
    if count > MAX_VERBS {
        return Err(FrameError::Verbs(count));
    }
    (0..count).map(|_| body.verb()).collect()
}

fn wait(body: &mut Cursor<'_>) -> Result<(RawWait, u64), FrameError> {
    let addr = body.addr()?;
    let width = body.width()?;
    let conds = body.u8()?;
    body.zero(2)?;
    let timeout_ns = body.u64()?;
    let cond = body.cond()?;
    let or = match conds {
        1 => None,
        2 => Some(body.cond()?),
        other => return Err(FrameError::Cond(other)),
    };
    Ok((RawWait { addr, width, cond, or }, timeout_ns))
}

fn peer(body: &mut Cursor<'_>) -> Result<PeerId, FrameError> {
    let peer = body.u32()?;
    body.zero(4)?;
    if peer == 0 { Err(FrameError::Peer) } else { Ok(PeerId(peer)) }
}

fn text(body: &mut Cursor<'_>, length: u16) -> Result<String, FrameError> {
    if usize::from(length) > MAX_TEXT {
        return Err(FrameError::Text);
    }
    let bytes = body.bytes(length.into())?;
    str::from_utf8(bytes).map(str::to_owned).map_err(|_| FrameError::Text)
}
