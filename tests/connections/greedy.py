"""Clients that read as fast as they can, beside one that asks for little.

How long that one waits depends on the machine. What is sent to the others while it waits does not, and tells as much:
`bytes_written` of `stats` before and after each of its requests. A request does not count if this process was ready to
run during it, but had to wait for a processor: the server may have replied long before.
"""

import multiprocessing
import time

from crowd import Crowd
from servers import PATIENCE, Control, Wrong

CLIENTS = 100
# Nanoseconds for which this process may wait for a processor during a request that counts.
DELAY_MAX = 1_000_000


def load(port, values, pipe):
    """A process with the greedy clients."""
    try:
        crowd = Crowd(port)
        clients = crowd.connect(CLIENTS)
        pipe.send("connected")
        pipe.recv()
        for client in clients:
            client.ask(values.request(client), values.expected(client))
        crowd.gather(clients)
        crowd.silence()
        pipe.send("read")
    except Wrong as wrong:
        pipe.send(str(wrong))
    except EOFError:
        pass


def processor_delay():
    """Returns the nanoseconds for which this process has waited for a processor since its start."""
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1])


def receive(pipe, expected):
    try:
        word = pipe.recv()
    except EOFError:
        word = "they have ended"
    if word != expected:
        raise Wrong(f"the greedy clients: {word}")


def play(kind, options, values):
    """Runs greedy clients against a server with one worker, which serves them all; returns figures."""
    with kind(options, CLIENTS + 100, threads=1) as server:
        control = Control(server.port)
        for number, value in enumerate(values.values):
            control.set(values.key(number), value)
        pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=load, args=(server.port, values, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            if not pipe.poll(PATIENCE):
                raise Wrong("the greedy clients hang")
            receive(pipe, "connected")
            written, delay, waits, skipped = control.stat("bytes_written"), processor_delay(), [], 0
            pipe.send("ask")
            began = time.monotonic()
            while not pipe.poll():
                before, delay_before = written, delay
                written, delay = control.stat("bytes_written"), processor_delay()
                if delay - delay_before > DELAY_MAX:
                    skipped += 1
                else:
                    waits.append(written - before)
            receive(pipe, "read")
            seconds = time.monotonic() - began
        finally:
            process.kill()
            process.join()
        if not waits:
            raise Wrong("this process had to wait for a processor during each of its requests: the machine is too busy")
        waits.sort()
        figures = {
            "read and verified": f"{values.count * values.size * CLIENTS / 1e6:,.0f} MB in {seconds:.1f} s",
            "requests for `stats` meanwhile": f"{len(waits)}, and {skipped} that do not count",
            "sent to the others during one of them: median": f"{waits[len(waits) // 2] / 1e6:.1f} MB",
            "the most": f"{waits[-1] / 1e6:.1f} MB",
        }
        if kind.name == "evermap":
            judge(control, values, waits[-1], figures)
        control.close()
        return figures


def judge(control, values, most, figures):
    """No request may wait for more than a turn of each other client.

    In a turn a worker collects replies for a client until they have `output_limit` bytes or more. Before that it sends
    what the socket has not taken in the turn before, which is less than one such collection. Then it is the turn of the
    next.
    """
    settings = control.stats("settings")
    longest = max(map(len, values.replies))
    round_bytes = -(-int(settings["output_limit"]) // longest) * longest
    # And the replies to the requests for statistics themselves.
    allowed = CLIENTS * 2 * round_bytes + (1 << 20)
    figures["allowed at most"] = f"{allowed / 1e6:.1f} MB"
    if most > allowed:
        raise Wrong(f"{most / 1e6:.1f} MB were sent to others during one request; allowed: {allowed / 1e6:.1f} MB")
