"""More clients than are allowed."""

from crowd import Crowd
from servers import Control, Wrong, wait_for

LIMIT = 1_000
CLIENTS = 1_500
FREED = 200
REJECTED = b"ERROR Too many open connections\r\n"
# How long clients that have to wait are watched for a premature reply, seconds.
WATCHED = 0.5
STEP = 100


def ask_all(crowd, clients):
    """Each client sends a request at once, as most libraries do."""
    for client in clients:
        if not client.closed:
            client.ask(b"get limit\r\n", [b"VALUE limit 0 5\r\nvalue\r\nEND\r\n"])
    crowd.settle([client for client in clients if not client.closed])
    return [client for client in clients if client.rejection is None]


def rejecting(kind, options):
    """Further clients are rejected, and admitted again when others have gone."""
    with kind(options, LIMIT) as server:
        control = Control(server.port)
        control.set(b"limit", b"value")
        crowd = Crowd(server.port)
        clients, served = [], []
        while len(clients) < CLIENTS:
            some = crowd.connect(STEP)
            clients += some
            # Every second step waits for the server to speak first, as a client that has nothing to ask does.
            if len(clients) % (2 * STEP) == 0 and len(clients) > LIMIT:
                for client in some:
                    client.replies = [b"nothing"]
                crowd.settle(some)
            else:
                served += ask_all(crowd, some)
        rejected = [client for client in clients if client.rejection is not None]
        check_rejections(server, served, rejected)
        figures = {
            f"served of {CLIENTS} clients at a limit of {LIMIT}": f"{len(served)} and this one for statistics",
            "the others get": describe(rejected),
            "`rejected_connections`": control.stat("rejected_connections"),
        }
        if kind.name == "evermap":
            # The connection for statistics is one of them.
            expect("served clients", len(served), LIMIT - 1)
            expect("`rejected_connections`", control.stat("rejected_connections"), len(rejected))
        crowd.close(rejected)
        crowd.close(served[:FREED])
        served = served[FREED:]
        before = control.stat("curr_connections")
        wait_for(
            f"{FREED} closed connections are no longer counted, of {before}",
            lambda: control.stat("curr_connections") <= before - FREED or server.descriptors() < len(served) + 50,
        )
        admitted = ask_all(crowd, crowd.connect(FREED))
        expect(f"clients that are admitted after {FREED} have gone", len(admitted), FREED)
        further = ask_all(crowd, crowd.connect(1))
        figures[f"admitted after {FREED} have gone"] = f"{len(admitted)}, and {len(further)} more"
        if kind.name == "evermap":
            expect("clients beyond the limit, once it is reached again", len(further), 0)
        expect("clients that are still served", len(ask_all(crowd, served + admitted)), len(served) + FREED)
        crowd.close()
        control.close()
        return figures


def check_rejections(server, served, rejected):
    """The first are served; each of the others learns why not."""
    if server.name != "evermap":
        return
    last, first = max(client.number for client in served), min(client.number for client in rejected)
    if last > first:
        raise Wrong(f"client {last} is served, though client {first} was rejected before")
    for client in rejected:
        if client.rejection != REJECTED:
            raise Wrong(f"{client} was rejected with {client.rejection!r}")


def describe(rejected):
    kinds = {}
    for client in rejected:
        words = repr(client.rejection.decode().strip()) if client.rejection else "nothing"
        kinds[words] = kinds.get(words, 0) + 1
    return "; ".join(f"{words}, then the end ({count})" for words, count in kinds.items())


def expect(what, found, expected):
    if found != expected:
        raise Wrong(f"{what}: {found} instead of {expected}")


def waiting(kind, options):
    """Further clients wait, and are served when others have gone.

    memcached, asked to wait, reduces the queue of the system to nothing, so that further clients cannot even connect:
    this is not for it.
    """
    with kind(options, LIMIT, wait_when_full=True) as server:
        control = Control(server.port)
        control.set(b"limit", b"value")
        crowd = Crowd(server.port)
        request, reply = b"get limit\r\n", [b"VALUE limit 0 5\r\nvalue\r\nEND\r\n"]

        def ask(clients):
            for client in clients:
                client.ask(request, reply)

        # The connection for statistics is one of them.
        served = crowd.connect(LIMIT - 1)
        ask(served)
        crowd.gather(served)
        others = crowd.connect(CLIENTS - LIMIT)
        ask(others)
        crowd.silence(WATCHED)
        wait_for("`accepting_conns` is 0", lambda: control.stat("accepting_conns") == 0)
        # They are let in, in their order, as others go.
        for start in range(0, len(others), STEP):
            crowd.close(served[start : start + STEP])
            crowd.gather(others[start : start + STEP])
        served = served[len(others) :] + others
        ask(served)
        crowd.gather(served)
        expect("`curr_connections`", control.stat("curr_connections"), len(served) + 1)
        figures = {
            "served in the end": LIMIT - 1 + len(others),
            "`listen_disabled_num`": control.stat("listen_disabled_num"),
            "`rejected_connections`": control.stat("rejected_connections"),
        }
        expect("`rejected_connections`", figures["`rejected_connections`"], 0)
        crowd.close()
        control.close()
        return figures
