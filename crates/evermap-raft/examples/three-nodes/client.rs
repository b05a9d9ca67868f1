//! A client, which finds the leader.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use evermap_raft::kv::{Reply, Request};
use tokio::net::TcpStream;

use super::protocol::{Answer, Ask, Status, ask};

/// How long a node may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct Client {
    addresses: Vec<String>,
    connections: HashMap<String, Option<TcpStream>>,
    /// The last one that was not wrong.
    leader: String,
}

impl Client {
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        let leader = addresses[0].clone();
        Client { addresses, connections: HashMap::new(), leader }
    }

    /// Makes a change. After an error it may have been made, or may be made later: who repeats it
    /// should use [`Request::CompareExchange`], or one that has no other effect the second time.
    pub(crate) async fn change(&mut self, request: Request) -> io::Result<Reply> {
        match self.ask_leader(Ask::Change(request)).await? {
            Answer::Changed(reply) => Ok(reply),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// Reads a key. The value is not older than any that was read, or acknowledged, before.
    pub(crate) async fn get(&mut self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self.ask_leader(Ask::Get(key.to_vec())).await? {
            Answer::Value(value) => Ok(value),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// Returns how far a node is, by its id.
    pub(crate) async fn status(&mut self, id: u64) -> io::Result<Status> {
        let address = self.addresses[id as usize - 1].clone();
        match self.ask(&address, &Ask::Status).await? {
            Answer::Status(status) => Ok(status),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// Asks the leader, or whom the others take for it. One error is the end: the outcome is not
    /// known then.
    async fn ask_leader(&mut self, question: Ask) -> io::Result<Answer> {
        for _ in 0..=self.addresses.len() {
            let address = self.leader.clone();
            let answer = self.ask(&address, &question).await;
            match answer {
                Ok(Answer::Elsewhere(Some(leader))) => self.leader = leader,
                Ok(Answer::Elsewhere(None)) => self.try_next(),
                Err(error) => {
                    self.try_next();
                    return Err(error);
                }
                Ok(answer) => return Ok(answer),
            }
        }
        Err(io::Error::other("there is no leader"))
    }

    fn try_next(&mut self) {
        let at = self.addresses.iter().position(|address| *address == self.leader);
        let next = at.map_or(0, |at| (at + 1) % self.addresses.len());
        self.leader = self.addresses[next].clone();
    }

    async fn ask(&mut self, address: &str, question: &Ask) -> io::Result<Answer> {
        let connection = self.connections.entry(address.to_owned()).or_default();
        ask(connection, address, question, PATIENCE).await
    }
}
