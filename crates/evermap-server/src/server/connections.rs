//! The open connections, as `stats conns` and the log streams show them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::address::ListenAddress;
use crate::watch::Transport;

/// The open connections of a server, by file descriptor.
#[derive(Default)]
pub(super) struct Connections(Mutex<BTreeMap<u32, Arc<Connection>>>);

/// What is known about one connection.
pub(super) struct Connection {
    /// The file descriptor, which names the connection.
    pub(super) number: u32,
    pub(super) peer: Peer,
    /// The time of its last turn, in seconds since 1970.
    active_at: AtomicU32,
    state: AtomicU8,
}

/// The other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) transport: Transport,
    /// The address without the port; `unix` for a unix socket.
    pub(super) address: String,
    pub(super) port: u16,
    /// The address of this side, as `stats conns` shows it. A listener has none.
    pub(super) listener: Option<String>,
}

/// What a connection is doing. The words are memcached's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for connections.
    Listening,
    /// It waits for a request.
    Read,
    /// It waits for the rest of a request.
    Waiting,
    /// Requests are being executed.
    Execute,
    /// It waits until the client reads its replies.
    Write,
    /// It receives log lines.
    Watch,
}

impl State {
    const ALL: [(State, &str); 6] = [
        (State::Listening, "conn_listening"),
        (State::Read, "conn_read"),
        (State::Waiting, "conn_waiting"),
        (State::Execute, "conn_parse_cmd"),
        (State::Write, "conn_mwrite"),
        (State::Watch, "conn_watch"),
    ];

    fn word_of(number: u8) -> &'static str {
        State::ALL.get(usize::from(number)).map_or("conn_read", |(_, word)| word)
    }
}

impl Peer {
    pub(super) fn of(address: SocketAddr) -> Self {
        let (transport, port) = (Transport::Tcp, address.port());
        Peer { transport, address: address.ip().to_string(), port, listener: None }
    }

    /// Returns the other side of a unix socket, which has no address.
    pub(super) fn local() -> Self {
        Peer { transport: Transport::Local, address: "unix".into(), port: 0, listener: None }
    }

    /// Returns the address of a listener.
    pub(super) fn of_listener(address: &ListenAddress) -> Self {
        match address {
            ListenAddress::Tcp(address) => Peer::of(*address),
            ListenAddress::Unix(path) => {
                Peer { address: path.display().to_string(), ..Peer::local() }
            }
        }
    }

    /// Adds the address of this side.
    pub(super) fn connected_to(self, listener: &ListenAddress) -> Self {
        Peer { listener: Some(Peer::of_listener(listener).full()), ..self }
    }

    /// Returns the address as `stats conns` shows it.
    fn full(&self) -> String {
        let Peer { address, port, .. } = self;
        match self.transport {
            Transport::Local => format!("unix:{address}"),
            Transport::Tcp if address.contains(':') => format!("tcp6:[{address}]:{port}"),
            Transport::Tcp => format!("tcp:{address}:{port}"),
        }
    }
}

impl Connections {
    /// Adds a connection. It is removed when the returned value is dropped.
    pub(super) fn add(
        self: &Arc<Self>,
        number: u32,
        peer: Peer,
        state: State,
        now: u32,
    ) -> Registered {
        let connection = Arc::new(Connection {
            number,
            peer,
            active_at: AtomicU32::new(now),
            state: AtomicU8::new(state as u8),
        });
        // Replaces a connection that was closed and is about to be removed.
        self.lock().insert(connection.number, connection.clone());
        Registered { connection, connections: self.clone() }
    }

    /// Calls `each` with the name and value of each statistic of each connection.
    pub(super) fn stats(&self, now: u32, each: &mut dyn FnMut(&str, &dyn Display)) {
        // The lock is not held while the reply is written.
        let connections: Vec<_> = self.lock().values().cloned().collect();
        for connection in connections {
            let number = connection.number;
            let idle = now.saturating_sub(connection.active_at.load(Relaxed));
            each(&format!("{number}:addr"), &connection.peer.full());
            if let Some(listener) = &connection.peer.listener {
                each(&format!("{number}:listen_addr"), listener);
            }
            each(&format!("{number}:state"), &State::word_of(connection.state.load(Relaxed)));
            each(&format!("{number}:secs_since_last_cmd"), &idle);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is among the [`Connections`] until this is dropped.
pub(super) struct Registered {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl Registered {
    /// Returns the connection.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Records what the connection is doing. `now` is in seconds since 1970.
    pub(super) fn set_state(&self, state: State, now: u32) {
        self.connection.active_at.store(now, Relaxed);
        self.connection.state.store(state as u8, Relaxed);
    }

    /// Records what the connection is doing after a turn.
    pub(super) fn end_turn(&self, state: State) {
        self.connection.state.store(state as u8, Relaxed);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut connections = self.connections.lock();
        let number = self.connection.number;
        // The descriptor may have been closed, and belong to another connection already.
        if connections.get(&number).is_some_and(|found| Arc::ptr_eq(found, &self.connection)) {
            connections.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_words() {
        for (number, (state, word)) in State::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, State::word_of(number as u8)), (number, word));
        }
    }

    #[test]
    fn addresses_are_shown_as_memcached_does() {
        let full = |address: &str| Peer::of(address.parse().unwrap()).full();
        assert_eq!(full("127.0.0.1:80"), "tcp:127.0.0.1:80");
        assert_eq!(full("[::1]:80"), "tcp6:[::1]:80");
        assert_eq!(Peer::local().full(), "unix:unix");
        let listener = |address: ListenAddress| Peer::local().connected_to(&address).listener;
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        assert_eq!(listener(ListenAddress::Tcp(address)).unwrap(), "tcp:127.0.0.1:80");
        assert_eq!(listener(ListenAddress::Unix("/run/a".into())).unwrap(), "unix:/run/a");
    }

    #[test]
    fn a_descriptor_that_is_used_again_keeps_the_new_connection() {
        let connections = Arc::new(Connections::default());
        let add = |port| {
            let peer = Peer::of(SocketAddr::from(([127, 0, 0, 1], port)));
            connections.add(8, peer, State::Read, 100)
        };
        let (old, new) = (add(1), add(2));
        drop(old);
        new.set_state(State::Execute, 103);
        let mut stats = Vec::new();
        connections.stats(110, &mut |name, value| stats.push(format!("{name} {value}")));
        let expected = ["addr tcp:127.0.0.1:2", "state conn_parse_cmd", "secs_since_last_cmd 7"];
        assert_eq!(stats, expected.map(|stat| format!("8:{stat}")));
        drop(new);
        connections.stats(110, &mut |name, _| panic!("{name}"));
    }
}
