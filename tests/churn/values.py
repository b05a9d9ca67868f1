"""What the churn stores.

A key is a number; what it holds is told by a *version*: 0 for nothing, else the round in which it was
written and a number within that round. The value follows from key and version alone, so that an oracle
needs four bytes a key. A value says in every part of it which key, version and length it belongs to, so a
mixture of two values cannot pass for either.
"""

import zlib

SEQUENCE_BITS = 22
ROUNDS_MAX = (1 << 32 - SEQUENCE_BITS) - 1

# The sizes of a round are within a factor of sqrt(2); ten rounds take these bands once each, in an order of
# their own, so that the size of all data together stays about the same while sizes shift.
BANDS = 10
SMALLEST = 48
# One value in this many is large: 8 KiB to 1 MiB.
LARGE_EVERY = 2000
LARGEST = (1 << 20) - 4096


def key_bytes(key):
    """The key's name; names differ in length."""
    return b"key:%d" % key + b"-" * (key % 29)


def version_of(round_number, sequence):
    return round_number << SEQUENCE_BITS | sequence


def mix(key, version):
    """64 well-spread bits."""
    bits = (key * 0x9E3779B97F4A7C15 + version * 0xC2B2AE3D27D4EB4F + 1) & 0xFFFFFFFFFFFFFFFF
    bits = ((bits ^ bits >> 32) * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
    return bits ^ bits >> 32


class Values:
    """The values of one run; `bands` holds the band of each round, nothing for the initial records."""

    def __init__(self, bands):
        self.bands = bands

    def length(self, key, version):
        bits = mix(key, version)
        round_number = version >> SEQUENCE_BITS
        band = self.bands[round_number] if round_number else bits % BANDS
        part = (bits >> 16 & 0xFFFF) / 65536
        if (bits >> 32) % LARGE_EVERY == 0:
            return min(int(8192 * 2 ** (7 * part)), LARGEST)
        return int(SMALLEST * 2 ** ((band + part) / 2))

    def value(self, key, version):
        """The bytes; nothing for version 0."""
        if version == 0:
            return None
        length = self.length(key, version)
        unit = b"%d:%08x:%d:" % (key, version, length)
        unit += b"%08x|" % zlib.crc32(unit)
        return (unit * (length // len(unit) + 1))[:length]

    def describe(self, found):
        """What a value that was found claims to be, and whether it is that."""
        if found is None:
            return "absent"
        text = f"{len(found)} bytes beginning {found[:48]!r}"
        try:
            key, version, length = (
                int(part, base) for part, base in zip(found.split(b":")[:3], (10, 16, 10), strict=True)
            )
            claimed = self.value(key, version)
        except (ValueError, IndexError):
            return f"{text}, which is no value of this run"
        text += f": key {key}, version {version:#x} (round {version >> SEQUENCE_BITS}), length {length}"
        if found == claimed:
            return text + ", intact"
        same = next((i for i, (a, b) in enumerate(zip(found, claimed)) if a != b), min(len(found), len(claimed)))
        return f"{text}, not intact from byte {same} on: {found[same : same + 48]!r}"


def bands_of_rounds(rng, rounds):
    """A band for each round, from 1 on: every ten rounds in a row take each band once."""
    bands = [0]
    while len(bands) <= rounds:
        bands += rng.sample(range(BANDS), BANDS)
    return bands
