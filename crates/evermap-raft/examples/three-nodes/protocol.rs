//! What nodes and clients say to each other: a length of 4 bytes and a message, over TCP.

use std::io;
use std::time::Duration;

use evermap_raft::kv::{Kv, Reply, Request};
use openraft::error::{InstallSnapshotError, RaftError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A longer message is refused.
const MESSAGE_MAX: u32 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Of one node to another.
    Append(AppendEntriesRequest<Kv>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Kv>),
    /// Of a client to the leader.
    Change(Request),
    Get(Vec<u8>),
    /// Of a client to any node.
    Status,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>),
    Changed(Reply),
    Value(Option<Vec<u8>>),
    Status(Status),
    /// This is not the leader; that is at this address, if it is known.
    Elsewhere(Option<String>),
    /// Nothing is known of the outcome.
    Failed(String),
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) leader: Option<u64>,
    /// The index of the last entry that was applied.
    pub(crate) applied: u64,
    /// The index of the last entry in the current snapshot.
    pub(crate) snapshot: u64,
    /// The number of records, and a checksum of all of them in any order.
    pub(crate) records: u64,
    pub(crate) digest: u64,
}

/// Connects, and says what it is about at once.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(crate) async fn send<T: Serialize>(stream: &mut TcpStream, message: &T) -> io::Result<()> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    stream.write_all(&bytes).await
}

pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let len = stream.read_u32_le().await?;
    if len > MESSAGE_MAX {
        return Err(io::Error::other(format!("a message of {len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes).await?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Asks over a connection, which is made if there is none, and given up if there is an error.
pub(crate) async fn ask(
    connection: &mut Option<TcpStream>,
    address: &str,
    question: &Ask,
    patience: Duration,
) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => connect(address).await?,
        };
        send(&mut stream, question).await?;
        let answer = receive(&mut stream).await?;
        *connection = Some(stream);
        Ok(answer)
    };
    tokio::time::timeout(patience, exchange).await.map_err(io::Error::other)?
}
