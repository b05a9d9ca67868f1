//! Owners that are processes: requests and replies as bytes.
//!
//! ```text
//! frame    length of the rest, 4 bytes; items, one behind the other
//!
//! Get      0, key          Value    0 (absent), or 1 and the value
//! Put      1, key, value   Done     2 (was absent), or 3 (was present)
//! Remove   2, key          Failed   4, or 5 (no space), and the error in words
//!
//! key, value, words        length, 4 bytes; bytes
//! ```
//!
//! Numbers are little-endian. A frame is answered by one with as many items. Nothing in a frame is
//! trusted: one that is impossible ends the exchange with an error.

use std::io::{self, Read, Write};

use evermap_papers::tranche::Geometry;
use evermap_pm::Medium;

use super::{Link, Reply, Request, Shard};

/// The most bytes in a frame.
pub(crate) const FRAME_MAX: usize = 256 << 20;

/// The way to an owner that reads requests from one stream and writes replies to another, like the
/// standard input and output of a process that calls [`serve`].
pub(crate) struct StreamLink<R: Read, W: Write> {
    replies: R,
    requests: W,
}

impl<R: Read, W: Write> StreamLink<R, W> {
    /// Creates a link.
    pub(crate) fn new(replies: R, requests: W) -> Self {
        StreamLink { replies, requests }
    }
}

impl<R: Read, W: Write> Link for StreamLink<R, W> {
    fn send(&mut self, requests: Vec<Request>) -> io::Result<()> {
        write_frame(&mut self.requests, &requests, encode_request)
    }

    fn receive(&mut self) -> io::Result<Vec<Reply>> {
        read_frame(&mut self.replies, decode_reply)?.ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Owns a shard: executes the requests that arrive in one stream, and writes the replies to
/// another, until the first one ends.
///
/// # Errors
/// Errors of the streams, and `InvalidData` for bytes that are no requests.
pub(crate) fn serve<M: Medium, G: Geometry>(
    shard: &mut Shard<M, G>,
    requests: &mut impl Read,
    replies: &mut impl Write,
) -> io::Result<()> {
    while let Some(requests) = read_frame(requests, decode_request)? {
        write_frame(replies, &shard.execute(&requests), encode_reply)?;
    }
    Ok(())
}

fn write_frame<I>(
    to: &mut impl Write,
    items: &[I],
    encode: impl Fn(&I, &mut Vec<u8>),
) -> io::Result<()> {
    let mut frame = vec![0; 4];
    items.iter().for_each(|item| encode(item, &mut frame));
    let len = frame.len() - 4;
    if len > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a batch is too large"));
    }
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
    to.write_all(&frame)?;
    to.flush()
}

/// Returns the items of the next frame, or `None` if the stream has ended before one.
fn read_frame<I>(
    from: &mut impl Read,
    decode: impl Fn(&mut &[u8]) -> Option<I>,
) -> io::Result<Option<Vec<I>>> {
    let mut len = [0; 4];
    let first = loop {
        match from.read(&mut len[..1]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut len[1..])?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(invalid());
    }
    let mut frame = Vec::new();
    // Memory is allocated as bytes arrive, whatever the length says.
    from.take(len as u64).read_to_end(&mut frame)?;
    if frame.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (mut rest, mut items) = (&frame[..], Vec::new());
    while !rest.is_empty() {
        items.push(decode(&mut rest).ok_or_else(invalid)?);
    }
    Ok(Some(items))
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "impossible bytes between a driver and an owner")
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    // Longer ones make the frame too long anyway.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn decode_bytes(from: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = from.split_first_chunk::<4>()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *from = rest;
    Some(bytes.to_vec())
}

fn decode_tag(from: &mut &[u8]) -> Option<u8> {
    let (&tag, rest) = from.split_first()?;
    *from = rest;
    Some(tag)
}

fn encode_request(request: &Request, out: &mut Vec<u8>) {
    out.push(match request {
        Request::Get { .. } => 0,
        Request::Put { .. } => 1,
        Request::Remove { .. } => 2,
    });
    encode_bytes(request.key(), out);
    if let Request::Put { value, .. } = request {
        encode_bytes(value, out);
    }
}

fn decode_request(from: &mut &[u8]) -> Option<Request> {
    let tag = decode_tag(from)?;
    let key = decode_bytes(from)?;
    match tag {
        0 => Some(Request::Get { key }),
        1 => decode_bytes(from).map(|value| Request::Put { key, value }),
        2 => Some(Request::Remove { key }),
        _ => None,
    }
}

fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Value(None) => out.push(0),
        Reply::Value(Some(value)) => {
            out.push(1);
            encode_bytes(value, out);
        }
        Reply::Done { present } => out.push(2 + u8::from(*present)),
        Reply::Failed { no_space, error } => {
            out.push(4 + u8::from(*no_space));
            encode_bytes(error.as_bytes(), out);
        }
    }
}

fn decode_reply(from: &mut &[u8]) -> Option<Reply> {
    match decode_tag(from)? {
        0 => Some(Reply::Value(None)),
        1 => decode_bytes(from).map(|value| Reply::Value(Some(value))),
        tag @ (2 | 3) => Some(Reply::Done { present: tag == 3 }),
        tag @ (4 | 5) => {
            let error = String::from_utf8(decode_bytes(from)?).ok()?;
            Some(Reply::Failed { no_space: tag == 5, error })
        }
        _ => None,
    }
}
