//! Three nodes that are killed under load.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use evermap::{Durability, Evermap};
use evermap_raft::kv::{Reply, Request};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::Client;
use crate::history::History;
use crate::node::{Settings, options, run};
use crate::protocol::Status;
use crate::times;
use crate::victim::{Random, Victim, lose_power};

/// Small, so that a node that was away needs a snapshot.
const SNAPSHOT_EVERY: u64 = 100;
/// How often something is looked at until it has to have happened. Not a time: tests may be stopped
/// for a while.
const ROUNDS: u32 = 1200;
const COUNTER: &[u8] = b"counter";

/// Runs a node until the process is killed.
pub(crate) fn work(id: &str, file: &str, addresses: &[&str]) {
    let settings = Settings {
        id: id.parse().unwrap(),
        file: file.into(),
        addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        snapshot_every: SNAPSHOT_EVERY,
        in_memory: true,
    };
    tokio::runtime::Runtime::new().unwrap().block_on(run(settings)).unwrap();
}

struct Cluster {
    folder: tempfile::TempDir,
    addresses: Vec<String>,
    nodes: [Option<Victim>; 3],
    kills: u64,
}

impl Cluster {
    fn start() -> Self {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = listeners.iter().map(|it| it.local_addr().unwrap().to_string()).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { folder, addresses, nodes: [None, None, None], kills: 0 };
        drop(listeners);
        (1..=3).for_each(|id| cluster.restart(id));
        cluster
    }

    fn file(&self, id: u64) -> PathBuf {
        self.folder.path().join(format!("node {id}"))
    }

    fn restart(&mut self, id: u64) {
        let (text, file) = (id.to_string(), self.file(id));
        let mut arguments = vec!["as-node", &text, file.to_str().unwrap()];
        arguments.extend(self.addresses.iter().map(String::as_str));
        self.nodes[id as usize - 1] = Some(Victim::start(&arguments));
    }

    fn kill(&mut self, id: u64, loses_power: bool) {
        self.nodes[id as usize - 1].take().expect("it is alive").kill();
        self.kills += 1;
        if loses_power {
            lose_power(&self.file(id));
        }
    }

    /// Returns how many snapshots a dead node has installed: each has made a new map.
    fn installed(&self, id: u64) -> u64 {
        let db = Evermap::open(self.file(id), options(true).durability(Durability::Log)).unwrap();
        let maps = db.maps().unwrap();
        let number = |name: &String| name.strip_prefix("raft.state.")?.parse::<u64>().ok();
        maps.iter().find_map(number).unwrap()
    }

    /// Returns the id of the node that most take for the leader.
    async fn leader(&self, client: &mut Client) -> u64 {
        for _ in 0..ROUNDS {
            let mut votes = [0; 4];
            for id in 1..=3 {
                if let Ok(Status { leader: Some(leader), .. }) = client.status(id).await {
                    votes[leader as usize] += 1;
                }
            }
            if let Some(leader) = votes.iter().position(|votes| *votes >= 2) {
                return leader as u64;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("there is no leader");
    }

    /// Waits until all nodes have applied the same, and returns what they have.
    async fn agreement(&self, client: &mut Client) -> Status {
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            found.clear();
            for id in 1..=3 {
                found.extend(client.status(id).await.ok());
            }
            // What a node applies while it walks is in one of them and not in the other.
            let is_same = |other: &Status| {
                (other.applied, other.records, other.digest)
                    == (found[0].applied, found[0].records, found[0].digest)
            };
            if found.len() == 3 && found.iter().all(is_same) {
                return found.remove(0);
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("nodes do not come together: {found:?}");
    }
}

fn encode(version: u64) -> Option<Vec<u8>> {
    // With a tail, so that snapshots have some length.
    (version > 0).then(|| [&version.to_le_bytes()[..], &[version as u8; 200]].concat())
}

fn decode(value: Option<&Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// Counts a key up. A request whose outcome is not known is repeated, until it has been executed.
async fn write(history: Arc<History>, of: usize, mut client: Client, ends: Arc<AtomicBool>) {
    let key = format!("key {of}").into_bytes();
    for version in 1.. {
        let request = Request::CompareExchange {
            key: key.clone(),
            expected: encode(version - 1),
            new: encode(version),
        };
        history.keys[of].request(version);
        loop {
            if ends.load(SeqCst) {
                return;
            }
            let outage = history.outages.load(SeqCst);
            match client.change(request.clone()).await {
                Ok(Reply::Done) => {}
                Ok(Reply::Differs(found)) => {
                    let found = decode(found.as_ref());
                    assert_eq!(found, version, "LOST: key {of} has {found} in {version}");
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
            }
            history.succeed(outage);
            break;
        }
        history.keys[of].acknowledge(version);
        history.writes.fetch_add(1, SeqCst);
    }
}

/// Reads keys.
async fn read(history: Arc<History>, mut client: Client, ends: Arc<AtomicBool>) {
    for of in (0..history.keys.len()).cycle() {
        if ends.load(SeqCst) {
            return;
        }
        let outage = history.outages.load(SeqCst);
        let lowest = history.keys[of].lowest();
        match client.get(format!("key {of}").as_bytes()).await {
            Ok(value) => {
                history.keys[of].read(lowest, decode(value.as_ref()));
                history.succeed(outage);
                history.reads.fetch_add(1, SeqCst);
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Adds to a counter, and never repeats what may have been done; and adds new keys.
async fn add(history: Arc<History>, mut client: Client, ends: Arc<AtomicBool>) {
    for number in 0_u64.. {
        if ends.load(SeqCst) {
            return;
        }
        history.added.fetch_add(1, SeqCst);
        let request = Request::Increment { key: COUNTER.into(), by: 1 };
        match client.change(request).await {
            Ok(Reply::Count(_)) => _ = history.sums.fetch_add(1, SeqCst),
            Ok(other) => panic!("{other:?}"),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
        let key = format!("{number}").into_bytes();
        let _ = client.change(Request::Set { key, value: vec![7; 100] }).await;
    }
}

async fn read_counter(client: &mut Client) -> u64 {
    for _ in 0..ROUNDS {
        // Not at once: there are connections to nodes that were killed.
        if let Ok(value) = client.get(COUNTER).await {
            return u64::from_le_bytes(value.unwrap().try_into().unwrap());
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("the counter cannot be read");
}

/// Waits until clients have made `more` changes and reads.
async fn progress(history: &History, more: u64) {
    let (writes, reads) = (history.writes.load(SeqCst), history.reads.load(SeqCst));
    for _ in 0..ROUNDS {
        if history.writes.load(SeqCst) >= writes + more
            && history.reads.load(SeqCst) >= reads + more
        {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("clients make no progress");
}

/// Kills nodes, and starts them again.
async fn attack(
    cluster: &mut Cluster,
    history: &History,
    client: &mut Client,
    random: &mut Random,
) {
    let kills = times(7, 50);
    for round in 0.. {
        if cluster.kills >= kills {
            return;
        }
        progress(history, 20).await;
        sleep(random.millis(200)).await;
        let leader = cluster.leader(client).await;
        let follower = (leader + random.below(2)) % 3 + 1;
        let loses_power = random.below(2) == 0;
        match round % 5 {
            // No majority.
            4 => {
                cluster.kill(leader, loses_power);
                cluster.kill(follower, false);
                history.outages.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(1500)).await;
                history.outages.fetch_add(1, SeqCst);
                cluster.restart(follower);
                sleep(random.millis(500)).await;
                cluster.restart(leader);
            }
            // Away until it needs a snapshot.
            1 => {
                cluster.kill(follower, loses_power);
                progress(history, 2 * SNAPSHOT_EVERY).await;
                cluster.restart(follower);
            }
            _ => {
                cluster.kill(leader, loses_power);
                sleep(random.millis(1000)).await;
                cluster.restart(leader);
            }
        }
    }
}

pub(crate) fn test(random: &mut Random) {
    tokio::runtime::Runtime::new().unwrap().block_on(survives(random));
}

async fn survives(random: &mut Random) {
    let mut cluster = Cluster::start();
    let history = Arc::new(History::default());
    let ends = Arc::new(AtomicBool::new(false));
    let client = || Client::new(cluster.addresses.clone());
    let mut clients = JoinSet::new();
    for of in 0..history.keys.len() {
        clients.spawn(write(Arc::clone(&history), of, client(), Arc::clone(&ends)));
    }
    for _ in 0..3 {
        clients.spawn(read(Arc::clone(&history), client(), Arc::clone(&ends)));
    }
    clients.spawn(add(Arc::clone(&history), client(), Arc::clone(&ends)));
    let mut client = client();
    tokio::select! {
        _ = attack(&mut cluster, &history, &mut client, random) => {}
        Some(ended) = clients.join_next() => panic!("a client has ended: {ended:?}"),
    }
    progress(&history, 20).await;
    ends.store(true, SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let sum = read_counter(&mut client).await;
    let (least, most) = (history.sums.load(SeqCst), history.added.load(SeqCst));
    assert!(least <= sum && sum <= most, "the counter has {sum}, and not {least} to {most}");
    let status = cluster.agreement(&mut client).await;
    assert!(status.snapshot > 0, "{status:?}");
    // Everything is still there if power fails for all of them.
    (1..=3).for_each(|id| cluster.kill(id, true));
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.leader(&mut client).await;
    assert_eq!(read_counter(&mut client).await, sum);
    let after = cluster.agreement(&mut client).await;
    assert_eq!((after.records, after.digest), (status.records, status.digest));
    (1..=3).for_each(|id| cluster.kill(id, false));
    let installed: u64 = (1..=3).map(|id| cluster.installed(id)).sum();
    assert!(installed > 0, "nobody has needed a snapshot");
    println!(
        "cluster: {} kills, {} writes, {} reads, counter {least} <= {sum} <= {most}, \
         {installed} snapshots installed, {status:?}",
        cluster.kills,
        history.writes.load(SeqCst),
        history.reads.load(SeqCst),
    );
}
