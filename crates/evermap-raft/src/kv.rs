//! A replicated map of byte strings: commands, replies, and the types that openraft wants to know.

use evermap::{KEY_MAX, VALUE_MAX, counter};
use serde::{Deserialize, Serialize};

use crate::{Changes, Command, SnapshotFile};

openraft::declare_raft_types!(
    /// What a cluster of nodes with a map consists of.
    pub Kv:
        D = Request,
        R = Reply,
        SnapshotData = SnapshotFile,
);

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Binds the key to a value.
    Set {
        /// Up to [`KEY_MAX`] bytes.
        key: Vec<u8>,
        /// Up to [`VALUE_MAX`] bytes.
        value: Vec<u8>,
    },
    /// Removes the key.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Changes the key if it has the value that is expected.
    CompareExchange {
        /// The key.
        key: Vec<u8>,
        /// The value it has to have; `None` if it must not be there.
        expected: Option<Vec<u8>>,
        /// The value that it gets; `None` to remove it.
        new: Option<Vec<u8>>,
    },
    /// Adds to a counter: 8 bytes, an `i64`, little-endian. An absent key counts as 0.
    Increment {
        /// The key.
        key: Vec<u8>,
        /// What is added.
        by: i64,
    },
}

/// What a [`Request`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// There was no request.
    #[default]
    None,
    /// The key has its new value, or is gone.
    Done,
    /// There was no such key to delete.
    Absent,
    /// The key has this value, and not the expected one.
    Differs(Option<Vec<u8>>),
    /// The counter has this value now.
    Count(i64),
    /// Nothing was changed, for this reason.
    Refused(String),
}

impl Request {
    /// Returns what the store would refuse. It must not come that far, because that would stop
    /// every node.
    fn fault(&self) -> Option<&'static str> {
        let (key, value) = match self {
            Request::Set { key, value } => (key, Some(value)),
            Request::CompareExchange { key, new, .. } => (key, new.as_ref()),
            Request::Delete { key } | Request::Increment { key, .. } => (key, None),
        };
        if key.len() > KEY_MAX {
            return Some("the key is too long");
        }
        value.filter(|value| value.len() > VALUE_MAX).map(|_| "the value is too long")
    }
}

impl Command for Request {
    type Reply = Reply;

    fn apply(self, state: &mut Changes<'_>) -> evermap::Result<Reply> {
        if let Some(fault) = self.fault() {
            return Ok(Reply::Refused(fault.into()));
        }
        Ok(match self {
            Request::Set { key, value } => {
                state.put(key, value)?;
                Reply::Done
            }
            Request::Delete { key } => match state.remove(key)? {
                true => Reply::Done,
                false => Reply::Absent,
            },
            Request::CompareExchange { key, expected, new } => {
                let found = state.get(&key)?;
                if found != expected {
                    return Ok(Reply::Differs(found));
                }
                match new {
                    Some(value) => state.put(key, value)?,
                    None => _ = state.remove(key)?,
                }
                Reply::Done
            }
            Request::Increment { key, by } => increment(state, key, by)?,
        })
    }
}

fn increment(state: &mut Changes<'_>, key: Vec<u8>, by: i64) -> evermap::Result<Reply> {
    let count = match state.get(&key)? {
        None => 0,
        Some(value) => match counter(&value) {
            Some(count) => count,
            None => return Ok(Reply::Refused("the value is no counter".into())),
        },
    };
    let Some(sum) = count.checked_add(by) else {
        return Ok(Reply::Refused("the sum does not fit".into()));
    };
    state.put(key, sum.to_le_bytes())?;
    Ok(Reply::Count(sum))
}
