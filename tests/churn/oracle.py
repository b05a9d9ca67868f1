"""What must be in the store, in memory that all processes of the test share."""

import array
import mmap

# Keys changed last by each connection that are remembered.
RECENT = 1000


def shared(code, length):
    """An array that forked processes share."""
    size = array.array(code).itemsize
    return memoryview(mmap.mmap(-1, max(1, length) * size)).cast(code)


class Oracle:
    """The last acknowledged version of every key, and the operation of each connection that may be under way.

    Every key belongs to one connection, which alone changes it.
    """

    def __init__(self, keys, connections):
        self.versions = shared("I", keys)
        # Per connection: key + 1 (0: nothing under way) and the version that it would have.
        self.under_way = shared("I", 2 * connections)
        self.sequences = shared("I", connections)
        self.acknowledged = shared("Q", connections)
        self.recent_keys = shared("I", RECENT * connections)

    def next_sequence(self, connection):
        self.sequences[connection] += 1
        return self.sequences[connection]

    def begin(self, connection, key, version):
        """Before the request is sent."""
        self.under_way[2 * connection + 1] = version
        self.under_way[2 * connection] = key + 1

    def acknowledge(self, connection, key, version):
        """After the answer has come."""
        self.versions[key] = version
        count = self.acknowledged[connection]
        self.recent_keys[connection * RECENT + count % RECENT] = key
        self.acknowledged[connection] = count + 1
        self.under_way[2 * connection] = 0

    def take_under_way(self, connection):
        """Key, version before and version after of the operation that was never answered, or nothing."""
        key = self.under_way[2 * connection] - 1
        if key < 0:
            return None
        self.under_way[2 * connection] = 0
        return key, self.versions[key], self.under_way[2 * connection + 1]

    def recent(self, connection):
        """The keys that a connection changed last."""
        count = min(RECENT, self.acknowledged[connection])
        return list(self.recent_keys[connection * RECENT : connection * RECENT + count])

    def live(self):
        """How many keys hold something. O(keys)."""
        return sum(map(bool, self.versions))
