//! A queue of jobs with leases: `cargo run -p evermap --example queue [FILE]`.
//!
//! Workers take jobs in order. A worker leases a job before it begins, and removes job and lease
//! together when it is done. If a worker dies, its lease expires, and another one takes the job: so
//! each job is counted as done once, whatever is killed, and when.
//!
//! Kill it while it runs, and start it again: it does what was left, and some more.

use std::thread;
use std::time::Duration;

use evermap::{Batch, Evermap, Map, MapOptions, Options, Order, counter};

/// How long a worker may take for a job. Leases are whole seconds.
const LEASE: Duration = Duration::from_secs(1);
const WORKERS: u32 = 3;
/// The number of jobs that each run adds.
const JOBS: u32 = 300;

/// A queue: its jobs by number, and who works on which. Numbers are counted in the default map.
struct Queue {
    db: Evermap,
    jobs: Map,
    leases: Map,
}

/// A job that a worker has taken.
struct Job {
    number: Vec<u8>,
    what: Vec<u8>,
    /// The CAS id of its lease.
    lease: u64,
}

impl Queue {
    fn open(path: &str) -> evermap::Result<Self> {
        // The order of the jobs is in the file too, so a large queue is scanned at once.
        let db = Evermap::open(path, Options::new().ordered(Order::Persistent))?;
        let jobs = db.map("jobs", MapOptions::new())?;
        let leases = db.map("leases", MapOptions::new())?;
        Ok(Queue { db, jobs, leases })
    }

    /// Adds a job. Keys are compared byte by byte, so numbers are big-endian.
    fn add(&self, job: &str) -> evermap::Result<()> {
        let number = self.db.default_map().fetch_add("last number", 1)?;
        self.jobs.put(number.to_be_bytes(), job)
    }

    /// Leases the first job that nobody works on.
    fn take(&self, worker: &str) -> evermap::Result<Option<Job>> {
        for pair in self.jobs.scan(..)? {
            let (number, what) = pair?;
            let outcome = self.leases.set(&number).expires(LEASE).try_insert(worker)?;
            let Some(lease) = outcome.stored() else { continue };
            // It may have been done since the scan has read it.
            if self.jobs.contains(&number)? {
                return Ok(Some(Job { number, what, lease }));
            }
            let _removed = self.leases.remove_if(&number, lease)?;
        }
        Ok(None)
    }

    /// Removes a job and its lease, and counts it. Returns `false` if the lease has expired and
    /// another worker may have the job.
    fn complete(&self, job: &Job) -> evermap::Result<bool> {
        let mut batch = Batch::new();
        batch.add("done", 1);
        batch.in_map("leases").expect(&job.number, Some(job.lease)).remove(&job.number);
        batch.in_map("jobs").remove(&job.number);
        Ok(self.db.apply(&batch)?.is_done())
    }

    fn done(&self) -> evermap::Result<i64> {
        Ok(self.db.default_map().get("done")?.as_deref().and_then(counter).unwrap_or(0))
    }
}

/// Works until there is no job left. Returns how many it did.
fn work(queue: &Queue, worker: &str) -> evermap::Result<u32> {
    let mut done = 0;
    while !queue.jobs.is_empty()? {
        match queue.take(worker)? {
            Some(job) => {
                thread::sleep(Duration::from_millis(1)); // the work
                done += u32::from(queue.complete(&job)?);
            }
            // What is left is leased: by a worker that will be done soon, or by one that has died.
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(done)
}

fn main() -> evermap::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/evermap-queue.map".into());
    let queue = Queue::open(&path)?;
    println!("{} jobs were left by an earlier run", queue.jobs.len());
    for job in 0..JOBS {
        queue.add(&format!("job {job}"))?;
    }
    // This worker takes a job and is never heard of again.
    if let Some(job) = queue.take("the unreliable one")? {
        println!("{} has to be done by another worker", String::from_utf8_lossy(&job.what));
    }
    thread::scope(|scope| {
        let start = |id| {
            let queue = &queue;
            scope.spawn(move || work(queue, &format!("worker {id}")))
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        workers.into_iter().enumerate().try_for_each(|(id, worker)| {
            println!("worker {id} did {} jobs", worker.join().expect("no panic")?);
            Ok::<(), evermap::Error>(())
        })
    })?;
    println!("{} jobs are left, {} are done, in {path}", queue.jobs.len(), queue.done()?);
    queue.db.close()
}
