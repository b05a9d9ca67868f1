//! Sharded maps, whose owners are threads or processes.

use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use evermap_index::{Result, Visitor};
use evermap_papers::tranche::{Config, TinySizes};
use evermap_pm::medium::{Mapped, MappedOptions};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;
use evermap_pm::{Medium, Pool};

use crate::sharded::wire::FRAME_MAX;
use crate::sharded::{Driver, Link, Owners, Place, Reply, Request, Shard, StreamLink, serve};

/// Root cells of a shard: its map, and its place.
const CELLS: [usize; 2] = [0, 1];
const CAPACITY: u64 = 64 << 20;
/// The environment variable with the path of the file that a process owns.
const FILE: &str = "EVERMAP_TEST_SHARD";
const SHARDS: u16 = 3;

fn create<M: Medium>(medium: M, number: u16, shards: u16) -> Result<Shard<M>> {
    let config = RegionConfig { extent_size: 256 << 10, capacity: CAPACITY, seed: None };
    let pool = Pool::create(medium, &config, Identity::default())?;
    let [root, label] = CELLS.map(|cell| pool.root(cell));
    Shard::create(pool.clone(), root, label, Place { number, shards }, Config::default())
}

struct Marks<'a>(&'a mut dyn FnMut(u64));

impl Visitor for Marks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }
    fn word(&mut self, _word: u64) {}
}

fn open<M: Medium>(medium: M) -> Result<Shard<M>> {
    let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
    let [root, label] = CELLS.map(|cell| pool.root(cell));
    let mut shard = Shard::open(pool.clone(), root, label)?;
    if !pool.is_swept() {
        pool.sweep(|mark| shard.map().visit(&mut Marks(mark)))?;
    }
    Ok(shard)
}

fn set() -> Vec<Shard<Sim>> {
    let shard = |number| create(Sim::in_memory(CAPACITY).unwrap(), number, SHARDS).unwrap();
    (0..SHARDS).map(shard).collect()
}

/// What the keys of a client have.
type Contents = HashMap<Vec<u8>, Vec<u8>>;

/// Returns a batch about the keys of a client, and the replies to it.
fn batch(random: &mut Rng, client: u64, model: &mut Contents) -> (Vec<Request>, Vec<Reply>) {
    let count = random.below(120);
    let draw = |_| {
        let key = format!("{client}/{}", random.below(300)).into_bytes();
        match random.below(10) {
            0..4 => (Request::Get { key: key.clone() }, Reply::Value(model.get(&key).cloned())),
            4..8 => {
                let value = vec![random.draw() as u8; random.below(400) as usize];
                let present = model.insert(key.clone(), value.clone()).is_some();
                (Request::Put { key, value }, Reply::Done { present })
            }
            _ => {
                let present = model.remove(&key).is_some();
                (Request::Remove { key }, Reply::Done { present })
            }
        }
    };
    (0..count).map(draw).unzip()
}

/// Sends random batches, and compares every reply.
fn drive<L: Link>(driver: &mut Driver<L>, client: u64, batches: u64, model: &mut Contents) {
    let random = &mut Rng::new(client + batches);
    for _ in 0..batches {
        let (requests, due) = batch(random, client, model);
        assert_eq!(driver.execute(requests).unwrap(), due);
    }
}

/// Checks that every key has what it must have.
fn check_all<L: Link>(driver: &mut Driver<L>, model: &Contents) {
    let requests = model.keys().map(|key| Request::Get { key: key.clone() }).collect();
    let due: Vec<_> = model.values().map(|value| Reply::Value(Some(value.clone()))).collect();
    assert_eq!(driver.execute(requests).unwrap(), due);
}

#[test]
fn threads_own_shards() {
    let owners = Owners::start(set()).unwrap();
    let mut models = [1, 2].map(|client| {
        let mut model = Contents::new();
        drive(&mut owners.driver(), client, 3, &mut model);
        model
    });
    std::thread::scope(|threads| {
        for (model, client) in models.iter_mut().zip(1..) {
            let mut driver = owners.driver();
            threads.spawn(move || drive(&mut driver, client, 60, model));
        }
    });
    let mut driver = owners.driver();
    models.iter().for_each(|model| check_all(&mut driver, model));
    let mut shards: Vec<_> = owners.stop().into_iter().map(Option::unwrap).collect();
    assert!(driver.execute(vec![Request::Get { key: vec![] }]).is_err(), "they have stopped");
    let lens: Vec<u64> = shards.iter_mut().map(|shard| shard.map().len().unwrap()).collect();
    assert_eq!(lens.iter().sum::<u64>(), models.iter().map(|model| model.len() as u64).sum());
    assert!(lens.iter().all(|&len| len > 50), "{lens:?}");
    for (shard, number) in shards.iter_mut().zip(0..) {
        assert_eq!(shard.place(), Place { number, shards: SHARDS });
        assert_eq!(shard.map().verify(), Vec::<String>::new());
    }
    // They can be started again.
    let owners = Owners::start(shards).unwrap();
    models.iter().for_each(|model| check_all(&mut owners.driver(), model));
}

#[test]
fn only_a_whole_set_starts() {
    let mut swapped = set();
    swapped.swap(0, 1);
    assert!(Owners::start(swapped).is_err());
    let mut partial = set();
    partial.pop();
    assert!(Owners::start(partial).is_err());
    assert!(Owners::<Sim>::start(Vec::new()).is_err());
    assert!(create(Sim::in_memory(CAPACITY).unwrap(), 3, 3).is_err());
    assert!(Driver::<StreamLink<UnixStream, UnixStream>>::new(Vec::new()).is_err());
}

#[test]
fn a_shard_knows_its_place() {
    let medium = Sim::in_memory(CAPACITY).unwrap();
    let mut shard = create(medium.clone(), 1, 3).unwrap();
    let own = (0u64..).map(|number| number.to_le_bytes()).find(|key| Place::of(key, 3) == 1);
    let other = (0u64..).map(|number| number.to_le_bytes()).find(|key| Place::of(key, 3) == 2);
    let put = |key: [u8; 8]| Request::Put { key: key.to_vec(), value: vec![1] };
    let replies = shard.execute(&[put(own.unwrap()), put(other.unwrap())]);
    assert_eq!(replies[0], Reply::Done { present: false });
    assert!(matches!(&replies[1], Reply::Failed { no_space: false, .. }));
    assert_eq!(shard.map().len().unwrap(), 1);
    drop(shard);
    assert_eq!(open(medium.clone()).unwrap().place(), Place { number: 1, shards: 3 });
    let (pool, _) = Pool::open(medium.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    let label = pool.root(CELLS[1]);
    medium.store(label, medium.load(label) ^ 2);
    drop(pool);
    assert!(open(medium).is_err(), "another place than it was created with");
}

/// A full shard refuses what needs space, and the others do not.
#[test]
fn a_request_without_space_fails_alone() {
    let config = RegionConfig { extent_size: 4096, capacity: 256 << 10, seed: Some(1) };
    let medium = Sim::in_memory(256 << 10).unwrap();
    let pool: Arc<Pool<Sim>> = Pool::create(medium, &config, Identity::default()).unwrap();
    let place = Place { number: 0, shards: 1 };
    let (root, label) = (pool.root(0), pool.root(1));
    let mut shard =
        Shard::<_, TinySizes>::create(pool.clone(), root, label, place, Config::default()).unwrap();
    let replies = shard.execute(&[
        Request::Put { key: vec![1], value: vec![1] },
        Request::Put { key: vec![2], value: vec![0; 1 << 20] },
        Request::Get { key: vec![1] },
    ]);
    assert!(matches!(replies[1], Reply::Failed { no_space: true, .. }), "{replies:?}");
    assert_eq!(replies[2], Reply::Value(Some(vec![1])));
}

/// Processes that own a shard each, and the links to them.
struct Processes {
    children: Vec<Child>,
    driver: Driver<StreamLink<UnixStream, UnixStream>>,
}

impl Processes {
    fn start(directory: &Path) -> Self {
        let processes: Vec<_> =
            (0..SHARDS).map(|number| Self::start_one(directory, number)).collect();
        let (children, links) = processes.into_iter().unzip();
        Processes { children, driver: Driver::new(links).unwrap() }
    }

    fn start_one(directory: &Path, number: u16) -> (Child, StreamLink<UnixStream, UnixStream>) {
        let socket = directory.join(format!("socket-{number}"));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::a_process_owns_a_shard", "--test-threads=1"])
            .env(FILE, directory.join(number.to_string()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        (child, StreamLink::new(stream.try_clone().unwrap(), stream))
    }

    /// Ends the processes by ending what they read.
    fn stop(self) {
        drop(self.driver);
        for mut child in self.children {
            assert!(child.wait().unwrap().success());
        }
    }

    fn kill(mut self) {
        self.children.iter_mut().for_each(|child| child.kill().unwrap());
        let request = |number: u8| Request::Get { key: vec![number] };
        assert!(self.driver.execute((0..100).map(request).collect()).is_err());
        assert!(self.driver.execute(Vec::new()).is_err(), "it cannot be used any more");
        for child in &mut self.children {
            child.wait().unwrap();
        }
    }
}

/// The part of a process in the tests below; does nothing in others.
#[test]
fn a_process_owns_a_shard() {
    let Some(path) = std::env::var_os(FILE).map(std::path::PathBuf::from) else { return };
    let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let exists = path.exists();
    let options = MappedOptions { capacity: CAPACITY, create: true, ..MappedOptions::default() };
    let medium = Mapped::open(&path, &options).unwrap();
    let mut shard =
        if exists { open(medium).unwrap() } else { create(medium, number, SHARDS).unwrap() };
    assert_eq!(shard.place(), Place { number, shards: SHARDS });
    let socket = path.with_file_name(format!("socket-{number}"));
    let stream = UnixStream::connect(socket).unwrap();
    serve(&mut shard, &mut &stream, &mut &stream).unwrap();
    assert_eq!(shard.map().verify(), Vec::<String>::new());
    shard.map().pool().close().unwrap();
}

#[test]
fn processes_own_shards() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Contents::new();
    let mut processes = Processes::start(directory.path());
    drive(&mut processes.driver, 1, 20, &mut model);
    processes.stop();
    let mut processes = Processes::start(directory.path());
    check_all(&mut processes.driver, &model);
    drive(&mut processes.driver, 1, 21, &mut model);
    processes.kill();
    // What was answered was durable, as far as the death of a process goes.
    let mut processes = Processes::start(directory.path());
    check_all(&mut processes.driver, &model);
    drive(&mut processes.driver, 1, 22, &mut model);
    processes.stop();
}

/// Sends bytes to an owner, and returns how it ends.
fn serve_bytes(bytes: &[u8]) -> std::io::Result<()> {
    let mut shard = create(Sim::in_memory(CAPACITY).unwrap(), 0, 1).unwrap();
    serve(&mut shard, &mut &bytes[..], &mut Vec::new())
}

#[test]
fn impossible_bytes_end_an_exchange() {
    let (mut driver, mut peer) = {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = StreamLink::new(ours.try_clone().unwrap(), ours);
        (Driver::new(vec![link]).unwrap(), theirs)
    };
    // A whole frame with one request to get the key `k`.
    let get = [6, 0, 0, 0, 0, 1, 0, 0, 0, b'k'];
    assert!(serve_bytes(&[]).is_ok() && serve_bytes(&get).is_ok());
    for len in 1..get.len() {
        assert!(serve_bytes(&get[..len]).is_err(), "cut off after {len} bytes");
    }
    for (at, byte) in [(0, 7), (4, 3), (5, 2), (8, 1)] {
        let mut wrong = get;
        wrong[at] = byte;
        assert!(serve_bytes(&wrong).is_err(), "byte {at} is {byte}");
    }
    assert!(serve_bytes(&(FRAME_MAX as u32 + 1).to_le_bytes()).is_err());
    // Two replies to one request.
    peer.write_all(&[2, 0, 0, 0, 0, 0]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(driver.execute(vec![Request::Get { key: b"k".to_vec() }]).is_err());
}
