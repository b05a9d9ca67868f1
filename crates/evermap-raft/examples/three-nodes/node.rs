//! A node: its storage, its part in the cluster, and what it answers.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use evermap::Options;
use evermap_raft::kv::{Kv, Request};
use evermap_raft::{State, Storage};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use tokio::net::{TcpListener, TcpStream};

use super::network::Network;
use super::protocol::{Answer, Ask, Status, receive, send};

pub(crate) struct Settings {
    /// From 1.
    pub(crate) id: u64,
    pub(crate) file: PathBuf,
    /// Of all nodes, in the order of their ids.
    pub(crate) addresses: Vec<String>,
    /// After how many entries a snapshot is made, and the log before it is purged.
    pub(crate) snapshot_every: u64,
    /// Whether the log of the store may be in memory (tmpfs): for tests.
    pub(crate) in_memory: bool,
}

#[derive(Clone)]
struct Node {
    raft: Raft<Kv>,
    state: State,
}

/// What the store of a node is opened with.
pub(crate) fn options(in_memory: bool) -> Options {
    Options::new().capacity(4 << 30).checkpoint_bytes(16 << 20).log_in_memory(in_memory)
}

/// Runs a node until the process ends.
pub(crate) async fn run(settings: Settings) -> Result<(), Box<dyn Error>> {
    let Settings { id, file, addresses, snapshot_every, in_memory } = settings;
    let options = options(in_memory);
    let storage = tokio::task::spawn_blocking(|| evermap_raft::open::<Kv>(file, options)).await??;
    let Storage { log, state_machine } = storage;
    let state = state_machine.state();
    let config = Config {
        heartbeat_interval: 100,
        election_timeout_min: 400,
        election_timeout_max: 800,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot_every),
        max_in_snapshot_log_to_keep: snapshot_every / 4,
        purge_batch_size: 64,
        ..Config::default()
    };
    let config = Arc::new(config.validate()?);
    let raft = Raft::new(id, config, Network, log, state_machine).await?;
    let listener = TcpListener::bind(&addresses[id as usize - 1]).await?;
    if !raft.is_initialized().await? {
        let members = (1..).zip(addresses).map(|(id, address)| (id, BasicNode::new(address)));
        // Another node may have done it meanwhile, in the same way.
        let _ = raft.initialize(members.collect::<BTreeMap<_, _>>()).await;
    }
    let node = Node { raft, state };
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(node.clone().serve(stream));
    }
}

impl Node {
    async fn serve(self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let question = receive(&mut stream).await?;
            let answer = self.answer(question).await;
            send(&mut stream, &answer).await?;
        }
    }

    async fn answer(&self, question: Ask) -> Answer {
        match question {
            Ask::Append(request) => Answer::Append(self.raft.append_entries(request).await),
            Ask::Vote(request) => Answer::Vote(self.raft.vote(request).await),
            Ask::Snapshot(request) => Answer::Snapshot(self.raft.install_snapshot(request).await),
            Ask::Change(request) => self.change(request).await,
            Ask::Get(key) => self.get(&key).await,
            Ask::Status => self.status(),
        }
    }

    async fn change(&self, request: Request) -> Answer {
        match self.raft.client_write(request).await {
            Ok(done) => Answer::Changed(done.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Answer::Elsewhere(to.leader_node.map(|node| node.addr))
            }
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    /// Reads what every change that was acknowledged before has left.
    async fn get(&self, key: &[u8]) -> Answer {
        match self.raft.ensure_linearizable().await {
            Ok(_) => match self.state.get(key) {
                Ok(value) => Answer::Value(value),
                Err(error) => Answer::Failed(error.to_string()),
            },
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => {
                Answer::Elsewhere(to.leader_node.map(|node| node.addr))
            }
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    fn status(&self) -> Answer {
        let metrics = self.raft.metrics().borrow().clone();
        let (mut records, mut digest) = (0, 0_u64);
        for pair in self.state.map().iter() {
            let Ok((key, value)) = pair else { return Answer::Failed("a walk ended".into()) };
            records += 1;
            // The sum is the same in every order.
            digest = digest.wrapping_add(fingerprint(&key, &value));
        }
        let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
        Answer::Status(Status {
            leader: metrics.current_leader,
            applied: index(metrics.last_applied),
            snapshot: index(metrics.snapshot),
            records,
            digest,
        })
    }
}

/// FNV-1a of key, length of the key, and value.
fn fingerprint(key: &[u8], value: &[u8]) -> u64 {
    let len = (key.len() as u64).to_le_bytes();
    key.iter().chain(&len).chain(value).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
