//! Making changes durable without blocking the threads of an asynchronous runtime.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use evermap::Evermap;
use tokio::sync::oneshot;

use crate::{Error, Result};

/// Is told whether everything that was changed before it was handed over is durable.
type Waiter = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A thread that syncs the store. Those that wait while it does share the next sync.
pub(crate) struct Flusher {
    /// `None` while it is dropped.
    waiters: Option<Sender<Waiter>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the thread; it ends when the flusher is dropped.
    pub(crate) fn start(db: Evermap) -> io::Result<Self> {
        let (waiters, come) = channel();
        let thread = std::thread::Builder::new()
            .name("evermap-raft-sync".into())
            .spawn(move || run(&db, &come))?;
        Ok(Flusher { waiters: Some(waiters), thread: Some(thread) })
    }

    /// Calls `waiter` when everything that the calling thread has changed is durable.
    pub(crate) fn then(&self, waiter: impl FnOnce(io::Result<()>) + Send + 'static) {
        let waiters = self.waiters.as_ref().expect("there until it is dropped");
        if let Err(rejected) = waiters.send(Box::new(waiter)) {
            (rejected.0)(Err(io::Error::other("the thread that syncs has ended")));
        }
    }

    /// Waits until everything that the calling thread has changed is durable.
    pub(crate) fn wait(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (done, is_done) = oneshot::channel();
        // Nobody waits any more if this fails.
        self.then(move |result| _ = done.send(result));
        async {
            is_done.await.map_err(io::Error::other).and_then(|result| result).map_err(Error::Io)
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.waiters = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked only if a waiter has.
            let _ = thread.join();
        }
    }
}

fn run(db: &Evermap, come: &Receiver<Waiter>) {
    while let Ok(first) = come.recv() {
        let waiters: Vec<_> = std::iter::once(first).chain(come.try_iter()).collect();
        // A sync is of all threads: the instant that it takes comes after their changes, because
        // they came here through the channel.
        let result = db.sync().map_err(|error| error.to_string());
        for waiter in waiters {
            waiter(result.clone().map_err(io::Error::other));
        }
    }
}

/// Runs what takes long on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, is_done) = oneshot::channel();
    std::thread::Builder::new().name("evermap-raft-snapshot".into()).spawn(move || {
        // Nobody waits any more if this fails.
        let _ = done.send(work());
    })?;
    is_done.await.map_err(io::Error::other)?
}
