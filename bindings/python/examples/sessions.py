"""Sessions of an asyncio server that survive kill -9.

    python sessions.py sessions.map

A lookup takes less than a microsecond, so coroutines call the store directly. What may wait for a
disk or for other threads goes to a thread: opening, closing, long scans, and all changes of a store
with durability="log".
"""

import asyncio
import secrets
import sys

import evermap

HALF_AN_HOUR = 1800


async def log_in(sessions, name):
    token = secrets.token_hex(8)
    sessions.set(token, name, ttl=HALF_AN_HOUR)
    return token


async def who(sessions, token):
    name = sessions.get(token)
    if name is not None:
        sessions.expire(token, HALF_AN_HOUR)
    return name


async def main(path):
    db = await asyncio.to_thread(evermap.open, path)
    sessions = db.map("sessions", keys=str, values=str)
    print("start", db.incr(b"starts"), "with", len(sessions), "sessions")
    tokens = await asyncio.gather(*(log_in(sessions, f"user {number}") for number in range(100)))
    names = await asyncio.gather(*(who(sessions, token) for token in tokens))
    assert names == [f"user {number}" for number in range(100)]
    await asyncio.to_thread(db.close)


asyncio.run(main(sys.argv[1]))
