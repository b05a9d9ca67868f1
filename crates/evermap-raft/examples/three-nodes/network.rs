//! How a node reaches the others.

use std::io;
use std::time::Duration;

use evermap_raft::kv::Kv;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};
use tokio::net::TcpStream;

use super::protocol::{Answer, Ask, ask};

/// How soon a node that could not be reached is tried again.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct Network;

/// The way to one node.
pub(crate) struct Way {
    to: u64,
    address: String,
    connection: Option<TcpStream>,
}

impl RaftNetworkFactory<Kv> for Network {
    type Network = Way;

    async fn new_client(&mut self, to: u64, node: &BasicNode) -> Way {
        Way { to, address: node.addr.clone(), connection: None }
    }
}

type Failure<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl Way {
    async fn ask<T, E: std::error::Error>(
        &mut self,
        question: Ask,
        option: RPCOption,
        expect: impl FnOnce(Answer) -> Option<Result<T, RaftError<u64, E>>>,
    ) -> Result<T, Failure<E>> {
        let answer = ask(&mut self.connection, &self.address, &question, option.hard_ttl()).await;
        let unreachable = |error: io::Error| RPCError::Unreachable(Unreachable::new(&error));
        match expect(answer.map_err(unreachable)?) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(RPCError::RemoteError(RemoteError::new(self.to, error))),
            None => {
                Err(RPCError::Unreachable(Unreachable::new(&AnyError::error("another answer"))))
            }
        }
    }
}

impl RaftNetwork<Kv> for Way {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Kv>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failure<openraft::error::Infallible>> {
        self.ask(Ask::Append(request), option, |answer| match answer {
            Answer::Append(result) => Some(result),
            _ => None,
        })
        .await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Kv>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failure<InstallSnapshotError>> {
        self.ask(Ask::Snapshot(request), option, |answer| match answer {
            Answer::Snapshot(result) => Some(result),
            _ => None,
        })
        .await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failure<openraft::error::Infallible>> {
        self.ask(Ask::Vote(request), option, |answer| match answer {
            Answer::Vote(result) => Some(result),
            _ => None,
        })
        .await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }
}
