"""The fast path of a key query: from topic and key to the slices of their records, without a Python call in between.

`QueryPath.find` answers for an open store, by the rules of `mqstore.rocketmq.query.index_search` and `point_lookup`: the hash of
`topic#key`, the index files from the newest to the oldest, one chain in each, the records in the order of the log. It returns None for
everything but an ordinary answer: a chain that loops or leads past the end of its file, an index in memory, offsets none of which can be
read, numbers beyond the limits of the kernel, a text with half of a surrogate pair. Then the slow path takes over.

No lock is taken: the search runs in one piece, because it calls no Python code and does not release the interpreter's lock. Each record
is then looked up in one piece too.

Format: docs/formats/rocketmq.md, sections 5.2, 5.5 and 5.7.
"""

from __future__ import annotations

import cython


class QueryPath:
    """The fast path of an open store. recovery: holds its index. pulls: its fast path of pulls, which keeps maps of the log ready."""

    def __init__(self, result, recovery, log, pulls, cap):
        """result: made of slices, physical offsets, last store time and last physical offset of the index. cap: most records found."""
        self.result = result
        self.recovery = recovery
        self.log = log
        self.pulls = pulls
        self.cap = cap

    def find(self, topic, key, max_num, begin, end):
        """Return the result of a key query; None if the query must take the slow path."""
        offsets = cython.declare(cython.longlong[MAX_RESULTS])
        k: cython.Py_ssize_t
        count: cython.Py_ssize_t
        low: cython.longlong
        high: cython.longlong
        most: cython.longlong
        pulls: PullPath = self.pulls
        slices: list = []
        found: list = []
        index = self.recovery.index
        if type(topic) is not str or type(key) is not str or index is None or pulls.closed:
            return None
        files = index.files
        if type(files) is not list or not files:
            return None
        try:
            most = c_long(max_num)
            low = c_long(begin)
            high = c_long(end)
            if most > self.cap:
                most = self.cap
            count = self.search(files, topic, key, most, low, high, offsets)
            last_time = files[len(files) - 1].end_timestamp
            last_offset = files[len(files) - 1].end_physical_offset
        except (TypeError, OverflowError, UnicodeEncodeError, AttributeError):
            return None
        if count < 0:
            return None
        if count == 0:
            return self.result(((), (), 0, 0))
        for k in range(count):
            raw = self.record(offsets[k])
            if raw is None:
                return None
            if raw is not False:
                slices.append(raw)
                found.append(offsets[k])
        return self.result((tuple(slices), tuple(found), last_time, last_offset)) if found else None

    def search(self, files, topic, key, most, begin, end, offsets):
        """Write the offsets of a key's entries in [begin, end], ascending; return their number, UNKNOWN if the slow path decides."""
        k: cython.Py_ssize_t
        at: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        taken: cython.Py_ssize_t
        wanted: cython.longlong = key_hash(topic, key)
        slots: cython.longlong
        positions: cython.longlong
        entries: cython.longlong
        first: cython.longlong
        last: cython.longlong
        moved: cython.longlong
        mapped: MappedBytes
        if most < 1 or most > MAX_RESULTS:
            return UNKNOWN
        for k in range(len(files) - 1, -1, -1):
            file = files[k]
            held = getattr(file, "mapped_bytes", None)
            if held is None:
                return UNKNOWN  # in memory
            mapped = held
            first = c_long(file.begin_timestamp)
            last = c_long(file.end_timestamp)
            if (begin < first and end > last) or first <= begin <= last or first <= end <= last:
                slots = c_long(file.slot_count)
                positions = c_long(file.positions)
                entries = c_long(file.index_count)
                taken = follow(mapped.octets, slots, positions, entries, first, wanted, begin, end, most - count, offsets, count)
                if taken < 0:
                    return UNKNOWN
                count += taken
            if first < begin or count >= most:
                break
        for k in range(1, count):
            moved = offsets[k]
            at = k
            while at > 0 and offsets[at - 1] > moved:
                offsets[at] = offsets[at - 1]
                at -= 1
            offsets[at] = moved
        return count

    def record(self, physical):
        """Return the bytes of the record at a physical offset, False if it cannot be read, None if the slow path decides that."""
        for _ in range(2):
            found = self.look_up(physical)
            if found is None or found is False or type(found) is memoryview:
                return found
            # a file whose map is not ready: mapping it runs Python code, so everything is read again
            if found.kept is not None:
                return None
            self.pulls.hold(found, self.log.view(found))
        return None

    def look_up(self, physical):
        """Return what `record` does, or a file of the log to `hold`."""
        at: cython.longlong
        size: cython.longlong
        number: cython.longlong
        file: LogEnd
        mapped: MappedBytes
        pulls: PullPath = self.pulls
        files = self.log.files
        if pulls.closed or type(files) is not list or not files:
            return None
        file = files[0]
        if physical < file.start:
            return None if physical == 0 else False  # offset 0 may stand for the first file
        number = (physical - file.start) // file.size if file.size > 0 else 0
        if number >= len(files):
            file = files[len(files) - 1]
            return False if physical >= file.start + file.size else None
        file = files[number]
        at = physical - file.start
        if at < 0 or at >= file.size:
            return None  # files of several sizes
        held = file.mapped_bytes
        if held is None:
            return file
        mapped = held
        if mapped.view is None:
            return file
        if file.written > mapped.octets.shape[0]:
            return None
        if at + 4 > file.written:
            return False
        size = i32(first_byte(mapped.octets), at + AT_SIZE)
        if size < LEAST_SIZE or size > file.written - at:
            return False
        if physical == 0 and i64(first_byte(mapped.octets), at + AT_PHYSICAL_OFFSET) != 0:
            return False
        return mapped.view[at : at + size]


@cython.cfunc
@cython.exceptval(-1, check=True)
def key_hash(topic: str, key: str) -> cython.ulonglong:
    """Return the hash of `topic#key` in index files. Raises UnicodeEncodeError for a text with half of a surrogate pair."""
    length: cython.Py_ssize_t = 0
    text: cython.pointer[cython.const[cython.char]]
    h: cython.ulonglong
    text = utf8(topic, cython.address(length))
    h = hash_span(cython.cast(cython.pointer[cython.const[cython.uchar]], text), 0, length, 0)
    h = (h * 31 + SEPARATOR) & LOW32
    text = utf8(key, cython.address(length))
    h = hash_span(cython.cast(cython.pointer[cython.const[cython.uchar]], text), 0, length, h)
    if h > HIGHEST_BIT:
        return (LOW32 + 1) - h
    return 0 if h == HIGHEST_BIT else h
