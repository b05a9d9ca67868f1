"""Many clients in one thread."""

import errno
import select
import socket

from servers import PATIENCE, Wrong

# Clients that connect at the same time: fewer than wait in the queue of a listener.
BATCH = 250
# The ports of one address are not enough for everyone.
CLIENTS_PER_ADDRESS = 20_000
READ = 1 << 18
# Linux's number for an option that has no name in Python: a port is chosen when the other side is known.
IP_BIND_ADDRESS_NO_PORT = 24


class Client:
    """A connection, and the replies that it waits for."""

    __slots__ = ("socket", "number", "replies", "reply", "at", "received", "rejection", "closed")

    def __init__(self, connection, number):
        self.socket, self.number = connection, number
        # The expected replies; how many have arrived, and how many bytes of the next.
        self.replies, self.reply, self.at = [], 0, 0
        self.received = 0
        # What has arrived instead of a reply, where that may be.
        self.rejection = None
        self.closed = False

    def ask(self, request, replies):
        """Sends a request in one piece; the replies have to be exactly these."""
        if not self.is_answered():
            raise Wrong(f"{self}: a reply is outstanding")
        self.replies, self.reply, self.at = replies, 0, 0
        try:
            sent = self.socket.send(request)
        except OSError as error:
            raise Wrong(f"{self}: sending failed: {error}") from None
        if sent != len(request):
            raise Wrong(f"{self}: the socket took only {sent} of {len(request)} bytes of a request")

    def is_answered(self):
        return self.reply == len(self.replies)

    def take(self, chunk):
        """Compares received bytes with the expected replies."""
        self.received += len(chunk)
        start = 0
        while start < len(chunk):
            if self.is_answered():
                raise Wrong(f"{self}: unexpected bytes: {chunk[start : start + 80]!r}")
            expected = self.replies[self.reply]
            part = chunk[start : start + len(expected) - self.at]
            if not expected.startswith(part, self.at):
                raise Wrong(self.difference(expected, part))
            start += len(part)
            self.at += len(part)
            if self.at == len(expected):
                self.reply, self.at = self.reply + 1, 0

    def difference(self, expected, part):
        wanted = expected[self.at : self.at + len(part)]
        first = next(i for i in range(len(part)) if part[i] != wanted[i])
        return (
            f"{self}: reply {self.reply} is wrong at its byte {self.at + first} of {len(expected)}: "
            f"{part[first : first + 60]!r} instead of {wanted[first : first + 60]!r}"
        )

    def __str__(self):
        return f"client {self.number}"


class Crowd:
    """Clients of one server, none of which waits for another. `net` distinguishes the addresses of several crowds."""

    def __init__(self, port, net=0):
        self.port, self.net = port, net
        self.epoll = select.epoll()
        self.by_descriptor = {}
        self.numbers = 0

    def connect(self, count, receive_buffer=None, segment=None):
        """Connects clients, in batches, and returns them."""
        clients = []
        while len(clients) < count:
            batch = [self.begin(receive_buffer, segment) for _ in range(min(BATCH, count - len(clients)))]
            waiting = {client.socket.fileno() for client in batch}
            while waiting:
                for descriptor, _ in self.poll(lambda: f"{len(waiting)} clients cannot connect"):
                    if descriptor in waiting:
                        self.connected(self.by_descriptor[descriptor])
                        waiting.remove(descriptor)
            clients += batch
        return clients

    def begin(self, receive_buffer, segment):
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if segment:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((f"127.0.{self.net}.{1 + self.numbers // CLIENTS_PER_ADDRESS}", 0))
        outcome = connection.connect_ex(("127.0.0.1", self.port))
        if outcome not in (0, errno.EINPROGRESS):
            raise Wrong(f"client {self.numbers} cannot connect: {errno.errorcode[outcome]}")
        client = Client(connection, self.numbers)
        self.numbers += 1
        self.by_descriptor[connection.fileno()] = client
        self.epoll.register(connection, select.EPOLLOUT)
        return client

    def connected(self, client):
        if outcome := client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise Wrong(f"{client} cannot connect: {errno.errorcode[outcome]}")
        self.epoll.modify(client.socket, select.EPOLLIN)

    def poll(self, complaint):
        """Waits for events; that there are none is wrong."""
        events = self.epoll.poll(PATIENCE, 1024)
        if not events:
            raise Wrong(f"{complaint()}: nothing has happened for {PATIENCE} s")
        return events

    def gather(self, clients):
        """Waits for the replies to all of these clients. Nothing may happen to the others."""
        waiting = {client.socket.fileno() for client in clients if not client.is_answered()}
        while waiting:
            for descriptor, _ in self.poll(lambda: f"{len(waiting)} of {len(clients)} clients have no reply"):
                client = self.by_descriptor[descriptor]
                self.read(client)
                if client.is_answered():
                    waiting.discard(descriptor)

    def read(self, client):
        try:
            chunk = client.socket.recv(READ)
        except OSError as error:
            raise Wrong(f"{client}: receiving failed: {error}") from None
        if not chunk:
            raise Wrong(f"{client}: closed by the server after {client.received} bytes, in reply {client.reply}")
        client.take(chunk)

    def settle(self, clients):
        """Waits until each of these clients has its replies, or was rejected: closed, after a message or none."""
        waiting = {client.socket.fileno() for client in clients if not client.is_answered()}
        while waiting:
            for descriptor, _ in self.poll(lambda: f"{len(waiting)} of {len(clients)} clients are in suspense"):
                client = self.by_descriptor[descriptor]
                self.read_or_reject(client)
                if client.closed:
                    self.epoll.unregister(client.socket)
                if client.closed or client.rejection is None and client.is_answered():
                    waiting.discard(descriptor)

    @staticmethod
    def read_or_reject(client):
        try:
            chunk = client.socket.recv(READ)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            client.closed = True
            client.rejection = client.rejection or b""
        elif client.rejection is None and client.replies[client.reply].startswith(chunk[:1], client.at):
            client.take(chunk)
        else:
            client.rejection = (client.rejection or b"") + chunk

    def silence(self, seconds=0.0):
        """Fails if any client gets anything in this time."""
        for descriptor, _ in self.epoll.poll(seconds, 1):
            client = self.by_descriptor[descriptor]
            raise Wrong(f"{client} gets what it has not asked for: {client.socket.recv(80)!r}")

    def close(self, clients=None):
        for client in list(self.by_descriptor.values()) if clients is None else clients:
            del self.by_descriptor[client.socket.fileno()]
            client.socket.close()
        if clients is None:
            self.epoll.close()
