#!/usr/bin/env python3
"""Reads a file of Evermap by the offsets of docs/file-format.md, and nothing else.

    tests/file-format/read.py FILE          what is in it
    tests/file-format/read.py --dump FILE   its records: map, key and value, in hex, one a line

It verifies every check on its way, and fails if one does not hold. Of the kinds of index it knows
Dash-EH, which is the default, and P-CLHT, which the catalogue of maps has. It takes no lock, so the
file must not be in use. Offsets are written as numbers here, because this program is the test of the
page.
"""

import struct
import sys

MAGIC = b"EVERMAP\0"
SECOND_COPY, HEADER, TABLE, UNITS = 4096, 8192, 12288, 16384
OFFSET = (1 << 48) - 1
ALL = (1 << 64) - 1

# Kinds of checked words, with the number of bits of their values.
CONTROL, CAS_LIMIT, FLUSH_MARK, FLUSH_DUE = (1, 40), (2, 56), (3, 56), (4, 40)
RECORDS, BYTES, INTENT, CATALOGUE = (5, 48), (6, 48), (7, 48), (8, 48)
DESCRIPTOR, SAVED, ORDER, SEEDED = (9, 48), (10, 48), (11, 48), (12, 48)


class Wrong(Exception):
    """The file is not as the page says."""


def require(holds, what):
    if not holds:
        raise Wrong(what)


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC = crc_table()


def crc32c(data, before=0):
    crc = before ^ 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checked(kind, word, what):
    """Returns the value of a checked word."""
    number, width = kind
    value = word & ((1 << width) - 1)
    mixed = ((value ^ number << 56) + 0x9E3779B97F4A7C15) & ALL
    product = mixed * 0xD6E8FEB86659FD93
    folded = product & ALL ^ product >> 64
    check = folded % ((1 << 64 - width) - 1) + 1
    require(check == word >> width, f"{what}: {word:#x} is no word of kind {number}")
    return value


def mix(word):
    word = (word + 0x9E3779B97F4A7C15) & ALL
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & ALL
    word = (word ^ word >> 27) * 0x94D049BB133111EB & ALL
    return word ^ word >> 31


class File:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.read_superblock()
        self.state = self.data[HEADER : HEADER + 8].rstrip(b"\0").decode() or "open"
        generation, complement = self.words(HEADER + 64, 2)
        require(generation ^ complement == ALL, "the generation and its complement")
        self.generation = generation
        copied = self.words(SECOND_COPY + 256, 2)
        require(copied == [generation, complement], "the copy of the generation")
        self.cas_limit = checked(CAS_LIMIT, self.word(HEADER + 192), "limit of the CAS ids")
        self.read_table()
        self.used = self.read_snapshot() if self.state == "CLEAN" else None

    def word(self, at):
        require(at % 8 == 0 and at + 8 <= len(self.data), f"a word at {at}")
        return struct.unpack_from("<Q", self.data, at)[0]

    def words(self, at, count):
        return [self.word(at + 8 * i) for i in range(count)]

    def root(self, slot):
        return HEADER + 512 + 8 * slot

    def read_superblock(self):
        copies = [self.data[at : at + 256] for at in (0, SECOND_COPY)]
        for copy in copies:
            require(copy[:8] == MAGIC, "the magic word of a superblock")
            check = struct.unpack_from("<Q", copy, 248)[0]
            require(check == crc32c(copy[:248]), "the checksum of a superblock")
        require(copies[0] == copies[1], "two copies of the superblock that are equal")
        fields = struct.unpack_from("<IIQQQQQ", copies[0], 8)
        self.format, order, uuid0, uuid1, self.extent_size, self.unit_count, self.seed = fields
        self.uuid = f"{uuid0:016x}{uuid1:016x}"
        require(order == 0x01020304, "the byte order")
        self.unit = max(4096, min(16384, self.extent_size // 128))
        low = crc32c(copies[0][16:56])
        fit = low | crc32c(b"fits", low) << 32
        require(self.word(HEADER + 896) == fit, "the word by which the header knows its superblock")

    def read_table(self):
        """Reads the entries of all units that the file contains."""
        self.parts = []
        count = min((len(self.data) - UNITS) // self.unit, self.unit_count)
        entries = self.words(TABLE, min(512, count))
        for part in range(1, 17):
            words = [self.word(HEADER + 640 + 128 * copy + 8 * (part - 1)) for copy in (0, 1)]
            if words == [0, 0]:
                break
            at = words[0] & OFFSET
            check = crc32c(struct.pack("<QQ", at, part)) & 0xFFFF | 1
            require(words[0] == words[1] == at | check << 48, f"part {part} of the table")
            first, end = 512 << 2 * part - 2, min(512 << 2 * part, self.unit_count)
            self.parts.append((at, 8 * (end - first)))
            entries += self.words(at, min(end, count) - first if count > first else 0)
        require(len(entries) == count, "a table of all units")
        self.entries = entries
        self.extents = []  # first unit, number of units, kind, block size
        index = 0
        while index < count:
            word = entries[index]
            kind, detail = word & 0xFF, word >> 32
            units, size = 1, 0
            if kind in (1, 5):
                units, size = word >> 8 & 0xFFFFFF, detail * 16
            elif kind == 2:
                units = size = detail
                size *= self.unit
            elif kind == 4:
                require(detail == index, f"the number in the free unit {index}")
            else:
                require(kind in (0, 3), f"the kind {kind} of unit {index}")
            if kind in (1, 2, 5):
                tails = entries[index + 1 : index + units]
                require(all(tail == 3 for tail in tails), f"later units of the extent {index}")
                self.extents.append((index, units, kind, size))
            index += units

    def read_snapshot(self):
        """Returns the offsets of all allocated blocks, with their sizes and kinds."""
        offset, size, check = self.words(HEADER + 384, 3)
        require(crc32c(self.data[offset : offset + size]) == check, "the saved state of the heap")
        words, used, index = iter(self.words(offset, size // 8)), {}, 0
        for word in words:
            if not word & 1 << 31:
                index += word
                continue
            entry, start = word & ~(1 << 31), UNITS + index * self.unit
            kind, detail = entry & 0xFF, entry >> 32
            if kind == 6:
                require((start, detail) in [(at, -(-size // self.unit)) for at, size in self.parts],
                        "a part of the table")
                index += detail
                continue
            require(entry == self.entries[index], f"the entry of unit {index} as it was saved")
            if kind == 2:
                units, block, count = detail, detail * self.unit, 1
            else:
                units, block = entry >> 8 & 0xFFFFFF, detail * 16
                count = units * self.unit // block
            for base in range(0, count, 64):
                bits = next(words)
                for bit in range(64):
                    if bits >> bit & 1:
                        require(base + bit < count, "a bit of a block")
                        used[start + (base + bit) * block] = (block, kind)
            index += units
        return used

    def maps(self):
        """Returns the header of each map: by name, b"" for the default one, None for the catalogue."""
        found = {b"": Map(self, 0)}
        word = self.word(self.root(14))
        if word:
            catalogue = Map(self, checked(CATALOGUE, word, "root of the catalogue"))
            found[None] = catalogue
            for name, value in catalogue.pairs():
                found[name] = Map(self, struct.unpack("<Q", value)[0])
        return found


class Map:
    """The words of a map, in the header of the file or in a descriptor."""

    def __init__(self, file, descriptor):
        self.file, self.descriptor = file, descriptor
        if descriptor:
            self.root, self.flush, self.counters = descriptor + 8, descriptor + 16, descriptor + 32
            self.saved, self.order = descriptor + 48, descriptor + 56
            own = file.word(descriptor)
            require(checked(SEEDED, own, "descriptor") == descriptor, "the offset in a descriptor")
            self.seed, seal = file.words(descriptor + 64, 2)
            require(seal == mix(self.seed ^ mix(descriptor)), "the seal of a seed")
            self.owner = crc32c(struct.pack("<Q", descriptor))
        else:
            self.root, self.flush, self.counters = file.root(0), HEADER + 256, HEADER + 448
            self.saved, self.order = file.root(13), file.root(12)
            self.seed, self.owner = file.seed, 0
        self.mark = checked(FLUSH_MARK, file.word(self.flush), "flush mark")
        checked(FLUSH_DUE, file.word(self.flush + 8), "time of the flush")

    def totals(self):
        """Returns records and bytes, as a clean shutdown has left them."""
        records, size = self.file.words(self.counters, 2)
        return checked(RECORDS, records, "records"), checked(BYTES, size, "bytes")

    def index_words(self):
        """Returns what the slots of the index contain."""
        block = self.file.word(self.root)
        kind = self.file.data[block : block + 8]
        readers = {
            b"DASHEf@\x02": self.dash_words,
            b"DASHEf@\x82": self.dash_words,
            b"P-CLHT\x02\0": self.clht_words,
        }
        require(kind in readers, f"the kind of index {kind}")
        return list(readers[kind](block))

    def dash_words(self, block):
        file, directory = self.file, self.file.word(block + 8)
        at, depth = directory & OFFSET, directory >> 48 & 0xFF
        for segment in dict.fromkeys(file.words(at, 1 << depth)):
            magic = file.data[segment : segment + 8]
            require(magic in (b"DASHSEG\x01", b"DASHSEG\x02"), f"a segment at {segment}")
            buckets = [segment + 256 + 256 * i for i in range(66)]
            chain = file.word(segment + 24)
            while chain:
                buckets.append(chain)
                chain = file.word(chain)
            for bucket in buckets:
                allocated = file.word(bucket + 24) & 0x3FFF
                yield from (file.word(bucket + 32 + 16 * slot + 8)
                            for slot in range(14) if allocated >> slot & 1)

    def clht_words(self, block):
        file, table = self.file, self.file.word(block + 8)
        for home in range(1 << (table >> 48)):
            bucket = (table & OFFSET) + 64 * home
            while bucket:
                link = file.word(bucket + 8)
                yield from (file.word(bucket + 16 + 16 * slot + 8)
                            for slot in range(3) if link >> slot & 1)
                bucket = link & OFFSET & ~7

    def records(self):
        """Yields key, value, flags, expiry and CAS id of each record, and its offset."""
        file = self.file
        for word in self.index_words():
            at, tag = word & OFFSET, word >> 48
            control, cas, check, lengths = file.words(at, 4)
            key, value = lengths & 0x1FFFF, lengths >> 32
            require(cas & 0xFFFF == tag and cas < file.cas_limit, f"the CAS id of the record at {at}")
            crc, flags = check & 0xFFFFFFFF, check >> 32
            data = file.data[at + 32 : at + 32 + key + value]
            fixed = struct.pack("<QIQ", cas, flags, lengths & ~0xFFFE0000 & ALL)
            require(crc32c(data, crc32c(fixed, self.owner)) == crc, f"the record at {at}")
            control = checked(CONTROL, control, "control word")
            require(not control >> 32 & 1, "a record that the index leads to is bound")
            yield data[:key], data[key:], flags, control & 0xFFFFFFFF, cas, at

    def pairs(self):
        """Returns key and value of each record that was not flushed."""
        return [(key, value) for key, value, _, _, cas, _ in self.records() if cas >= self.mark]


def saved_keys(map):
    """Returns the keys that a clean shutdown has saved, in order."""
    file, word = map.file, map.file.word(map.saved)
    at, blocks = checked(SAVED, word, "saved keys") if word else 0, []
    while at:
        before, counts, checks = file.words(at, 3)
        count, size = counts & 0xFFFFFFFF, counts >> 32
        data = file.data[at + 24 : at + 24 + size]
        require(crc32c(file.data[at : at + 16]) == checks & 0xFFFFFFFF, "the head of saved keys")
        require(crc32c(data) == checks >> 32, "saved keys")
        blocks.append((count, data))
        at = before
    keys = []
    for count, data in reversed(blocks):
        at, key = 0, b""
        for _ in range(count):
            lengths = []
            for _ in range(2):
                value = shift = 0
                while True:
                    byte, at = data[at], at + 1
                    value, shift = value | (byte & 0x7F) << shift, shift + 7
                    if byte < 128:
                        break
                lengths.append(value)
            shared, further = lengths
            key, at = key[:shared] + data[at : at + further], at + further
            keys.append(key)
    return keys


def describe(file):
    print(f"format {file.format}, seed {file.seed:#x}, uuid {file.uuid}, state {file.state}, "
          f"opening {file.generation}")
    print(f"extents of up to {file.extent_size} bytes, units of {file.unit}, at most "
          f"{file.unit_count} of them; {len(file.parts)} later parts of the table")
    kinds = {1: "movable blocks", 2: "large objects", 5: "fixed blocks"}
    for kind, name in kinds.items():
        extents = [extent for extent in file.extents if extent[2] == kind]
        units = sum(extent[1] for extent in extents)
        print(f"{len(extents)} extents of {name}, {units} units")
    reached = set()
    for name, map in file.maps().items():
        records = list(map.records())
        reached.update(record[-1] for record in records)
        label = {b"": "the default map", None: "the catalogue"}.get(name, f"the map {name}")
        line = f"{label}: {len(records)} records"
        if file.state == "CLEAN":
            count, size = map.totals()
            require(count == len(records), f"{count} records in the counters of {label}")
            blocks = sum(file.used[record[-1]][0] for record in records)
            require(size == blocks, f"{size} bytes in the counters of {label}, and {blocks} in use")
            keys = saved_keys(map)
            if keys:
                require(keys == sorted(key for key, *_ in records), "the saved keys, in order")
                line += f", {len(keys)} keys saved in order"
        if file.word(map.order):
            block = checked(ORDER, file.word(map.order), "the persistent order")
            complete = file.data[block : block + 8] == b"complete"
            tree = file.word(block + 8)
            require(file.data[tree : tree + 8] == b"P-ART\0\0\x01", "a tree")
            line += f", its order in the file{'' if complete else ', not complete'}"
        print(line)
    if file.used is not None:
        require(all(file.used.get(at, (0, 0))[1] in (1, 2) for at in reached),
                "all records in allocated blocks of records")
        print(f"{len(file.used)} blocks allocated, {len(reached)} of them records")
    if file.word(file.root(15)):
        print(f"a batch was decided: {checked(INTENT, file.word(file.root(15)), 'intent')}")
    mark = file.data[HEADER + 960 : HEADER + 968].rstrip(b"\0").decode()
    print(f"damage: {mark or 'none was found'}")


def main():
    arguments = sys.argv[1:]
    dump = arguments[:1] == ["--dump"]
    if len(arguments) != 1 + dump:
        sys.exit(__doc__)
    try:
        file = File(arguments[-1])
        if not dump:
            return describe(file)
        for name, map in file.maps().items():
            for key, value in map.pairs() if name is not None else ():
                print(*(part.hex() for part in (name, key, value)), sep="\t")
    except Wrong as wrong:
        sys.exit(f"not as the page says: {wrong}")


if __name__ == "__main__":
    main()
