//! Owners that are threads of this process.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use evermap_papers::tranche::{Geometry, Sizes};
use evermap_pm::Medium;

use super::{Driver, Link, Reply, Request, Shard};

enum Message {
    Batch { requests: Vec<Request>, replies: Sender<Vec<Reply>> },
    Stop,
}

/// The threads that own the shards of a set. Dropping it stops them.
pub(crate) struct Owners<M: Medium, G: Geometry = Sizes<256, 16, 8>> {
    owners: Vec<Owner<Shard<M, G>>>,
}

struct Owner<S> {
    inbox: Sender<Message>,
    /// `None` once its end was waited for.
    thread: Option<JoinHandle<S>>,
}

impl<S> Owner<S> {
    /// Stops the thread after the batches that were sent before. Returns `None` if it has panicked.
    fn stop(&mut self) -> Option<S> {
        // If it has panicked, nobody receives this.
        let _ = self.inbox.send(Message::Stop);
        self.thread.take()?.join().ok()
    }
}

impl<S> Drop for Owner<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<M: Medium + 'static, G: Geometry> Owners<M, G> {
    /// Starts a thread for each shard of a set.
    ///
    /// # Errors
    /// `InvalidInput` if they are not all shards of one set in the order of their numbers, and
    /// errors of the system.
    pub(crate) fn start(shards: Vec<Shard<M, G>>) -> io::Result<Self> {
        let count = shards.len();
        let mut places = shards.iter().map(|shard| shard.place).zip(0usize..);
        let in_place = places.all(|(place, number)| {
            (usize::from(place.number), usize::from(place.shards)) == (number, count)
        });
        if count == 0 || !in_place {
            let what = "the shards are not a whole set in its order";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let owners = shards.into_iter().map(|shard| {
            let (inbox, messages) = channel();
            let name = format!("evermap-shard-{}", shard.place.number);
            let thread = Builder::new().name(name).spawn(move || own(shard, &messages))?;
            Ok(Owner { inbox, thread: Some(thread) })
        });
        Ok(Owners { owners: owners.collect::<io::Result<_>>()? })
    }

    /// Returns a driver that sends its requests to these threads. There can be several at a time.
    pub(crate) fn driver(&self) -> Driver<ThreadLink> {
        let links = self.owners.iter().map(|owner| ThreadLink::new(owner.inbox.clone()));
        Driver { links: links.collect(), failed: false }
    }

    /// Stops the threads, after the batches that were sent before, and returns the shards. `None`
    /// in the place of one whose owner has panicked.
    pub(crate) fn stop(mut self) -> Vec<Option<Shard<M, G>>> {
        self.owners.iter_mut().map(Owner::stop).collect()
    }
}

/// Executes what arrives.
fn own<M: Medium, G: Geometry>(
    mut shard: Shard<M, G>,
    messages: &Receiver<Message>,
) -> Shard<M, G> {
    while let Ok(Message::Batch { requests, replies }) = messages.recv() {
        // The driver may have been dropped.
        let _ = replies.send(shard.execute(&requests));
    }
    shard
}

/// The way to an owner that is a thread.
pub(crate) struct ThreadLink {
    inbox: Sender<Message>,
    /// Where the replies to each batch that is not answered yet arrive. The owner has the only
    /// senders, so that its end is noticed.
    due: VecDeque<Receiver<Vec<Reply>>>,
}

impl ThreadLink {
    fn new(inbox: Sender<Message>) -> Self {
        ThreadLink { inbox, due: VecDeque::new() }
    }
}

impl Link for ThreadLink {
    fn send(&mut self, requests: Vec<Request>) -> io::Result<()> {
        let (replies, due) = channel();
        let sent = self.inbox.send(Message::Batch { requests, replies });
        sent.map_err(|_| stopped())?;
        self.due.push_back(due);
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<Reply>> {
        let due = self.due.pop_front().ok_or(io::ErrorKind::InvalidInput)?;
        due.recv().map_err(|_| stopped())
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the owner of a shard has stopped")
}
