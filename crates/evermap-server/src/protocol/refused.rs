//! Requests that are refused before their data has arrived.

/// The data of a request that is refused, which is read and dropped, and the reply.
///
/// The reply follows the data, as in memcached. A client that does not wait for replies, or a proxy
/// whose clients share a connection, takes what it receives for the reply to the oldest request
/// that it has sent completely. It would drop a reply to a request that it is still sending, or
/// give it to another client, and mistake every reply after it.
pub(super) struct Refused {
    missing: usize,
    reply: Vec<u8>,
}

impl Refused {
    /// Refuses a request of which `missing` bytes have not been read. Takes the reply from `out`,
    /// where it begins at `start`.
    pub(super) fn new(missing: usize, out: &mut Vec<u8>, start: usize) -> Self {
        let reply = out[start..].to_vec();
        out.truncate(start);
        Refused { missing, reply }
    }

    /// Drops the missing bytes, or as many as there are, from the front of `arrived`, and appends
    /// the reply to `out` if none is missing any more. Returns the number of bytes.
    pub(super) fn take(&mut self, arrived: &[u8], out: &mut Vec<u8>) -> usize {
        let taken = self.missing.min(arrived.len());
        self.missing -= taken;
        if self.missing == 0 {
            out.append(&mut self.reply);
        }
        taken
    }

    /// Returns `true` if the data was dropped, and the reply appended.
    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Returns the number of bytes of memory that the reply takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.reply.capacity()
    }
}
