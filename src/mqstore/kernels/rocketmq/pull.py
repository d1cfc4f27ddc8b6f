"""The short way of a pull: from a place in a queue to the entries of its messages, without a Python call in between.

`scan` goes over the written entries of one queue file, by all the rules of a pull (`mqstore.rocketmq.query.pull`), for both versions. It
gives up where a rule asks for more than the entries: an address of the extended queue, an entry that is none. `PullPath.get` does so for a
store that is open, and returns None for everything but an ordinary answer: messages that lie in one file of the log, or none that fit
the filter. Then the long way takes over, which knows all the rest.

No lock is taken: compiled, all of it runs in one piece, because nothing in it calls Python code or releases the interpreter's lock
before everything is read. Uncompiled, where another thread could come in between, `get` always returns None.

A pull that went the short way keeps its rows as native 64-bit numbers (queue offset, physical offset, size) and makes slices and
lists of them only when they are asked for.
"""

from __future__ import annotations

import struct

import cython
import numpy as np

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64

    def c_long(value):
        return int(value)

    def announce(b, p, n):
        """Nothing to do: a hint for the processor."""

    def packed(numbers, start, count):
        return bytes(memoryview(np.asarray(numbers[start : start + count], np.int64)))


HEAD = 5  # numbers of `scan` in front of its rows
KEPT = 96  # maps that are held at a time: a store may have more files than a process may have open
_LARGEST_COUNT = 100_000_000  # the bytes of so many entries are still a number of 32 bits
_MOST_ROWS = 4096


class Held:
    """The bytes of a mapped file, at hand. view: None once they are let go of."""

    def __init__(self, view):
        self.view = view
        self.octets = view

    def release(self):
        """Let go of the map. Slices of it stay valid."""
        self.view = None
        self.octets = b""


class Pulled:
    """What a pull returned, see `mqstore.rocketmq.query.pull.GetResult`."""

    def __init__(
        self,
        status,
        next_begin_offset,
        min_offset,
        max_offset,
        slices=None,
        queue_offsets=None,
        physical_offsets=None,
        sizes=None,
        total_bytes=0,
        message_count=0,
        suggest_pulling_from_slave=False,
    ):
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.total_bytes = total_bytes
        self.message_count = message_count
        self.suggest_pulling_from_slave = suggest_pulling_from_slave
        self.rows = None
        self.view = None
        self.start = 0
        self._slices = slices
        self._queue_offsets = queue_offsets
        self._physical_offsets = physical_offsets
        self._sizes = sizes

    def lie_in(self, rows, start, view):
        """The messages are those of the rows, in a log file that begins at physical offset start; view: its bytes."""
        self.rows = rows
        self.start = start
        self.view = view

    @property
    def slices(self):
        if self._slices is None:
            view, start = self.view, self.start
            at = self.physical_offsets
            self._slices = [view[p - start : p - start + n] for p, n in zip(at, self.sizes, strict=True)]
        return self._slices

    @property
    def queue_offsets(self):
        if self._queue_offsets is None:
            self._lay_out()
        return self._queue_offsets

    @property
    def physical_offsets(self):
        if self._physical_offsets is None:
            self._lay_out()
        return self._physical_offsets

    @property
    def sizes(self):
        if self._sizes is None:
            self._lay_out()
        return self._sizes

    def _lay_out(self):
        rows = self.rows or b""
        numbers = struct.unpack(f"={len(rows) // 8}q", rows)
        self._queue_offsets, self._physical_offsets, self._sizes = list(numbers[::3]), list(numbers[1::3]), list(numbers[2::3])


class Limits:
    """What limits a pull, see `mqstore.rocketmq.query.pull.PullRules`. bytes_*: with the limit of one answer taken into account."""

    def __init__(
        self, *, five, in_memory_bytes, travel_files, max_filter_bytes, count_in_memory, bytes_in_memory, count_on_disk, bytes_on_disk
    ):
        self.five = five
        self.in_memory_bytes = in_memory_bytes
        self.travel_files = travel_files
        self.max_filter_bytes = max_filter_bytes
        self.count_in_memory = count_in_memory
        self.bytes_in_memory = bytes_in_memory
        self.count_on_disk = count_on_disk
        self.bytes_on_disk = bytes_on_disk

    @property
    def room(self):
        """Numbers that `scan` needs for its output at most."""
        return HEAD + 3 * (max(self.count_in_memory, self.count_on_disk, 1) + 1)


def scan(
    b: cython.const[cython.uchar][::1],
    first: cython.longlong,
    stop: cython.longlong,
    offset: cython.longlong,
    max_count: cython.longlong,
    log_max: cython.longlong,
    limits: Limits,
    out: cython.longlong[::1],
    hashes: cython.const[cython.int][::1] = None,
) -> cython.longlong:
    """Take messages of the entries first..stop-1 of a queue file; how many, -1 where the entries alone do not tell.

    offset: queue offset of the first entry. log_max: end of the log. hashes: of wanted tags, None for every message.
    out: how many entries are consumed, the physical offset looked at last, the bytes taken, the lowest offset and the highest end of what
    is taken; then the rows.
    """
    k: cython.longlong
    h: cython.Py_ssize_t
    at: cython.Py_ssize_t
    p: cython.Py_ssize_t
    physical: cython.longlong
    size: cython.longlong
    code: cython.longlong
    word: cython.int
    taken: cython.longlong = 0
    total: cython.longlong = 0
    examined: cython.longlong = 0
    consumed: cython.longlong = 0
    lowest: cython.longlong = 0
    end: cython.longlong = 0
    limit: cython.longlong = limits.max_filter_bytes
    most: cython.longlong
    most_bytes: cython.longlong
    five: cython.bint = limits.five
    filtered: cython.bint = hashes is not None
    wanted: cython.bint
    if first < 0 or stop > b.shape[0] // 20 or out.shape[0] < 8:
        raise ValueError("arrays are too small")
    if max_count > 100000000 or max_count < -100000000:
        return -1
    if max_count * 20 > limit:
        limit = max_count * 20
    for k in range(stop - first):
        if k * 20 >= limit:
            break
        p = 20 * (first + k)
        physical = i64(b, p)
        size = i32(b, p + 8)
        if physical < 0 or size <= 0:
            return -1
        if not five:
            examined = physical
        if taken > 0:
            if log_max - physical > limits.in_memory_bytes:
                most = limits.count_on_disk
                most_bytes = limits.bytes_on_disk
            else:
                most = limits.count_in_memory
                most_bytes = limits.bytes_in_memory
            if taken >= max_count or taken >= most or total + size > most_bytes:
                break
        examined = physical
        consumed = k + 1
        if filtered:
            code = i64(b, p + 12)
            if code <= -2147483649:
                return -1
            word = i32(b, p + 16)
            wanted = False
            for h in range(hashes.shape[0]):
                if hashes[h] == word:
                    wanted = True
                    break
            if not wanted:
                continue
        at = 5 + 3 * taken
        if at + 3 > out.shape[0]:
            return -1
        if taken == 0 or physical < lowest:
            lowest = physical
        if physical + size > end:
            end = physical + size
        out[at] = offset + k
        out[at + 1] = physical
        out[at + 2] = size
        taken += 1
        total += size
    out[0] = consumed
    out[1] = examined
    out[2] = total
    out[3] = lowest
    out[4] = end
    return taken


class PullPath:
    """Pulls from a store that is open. log: its LiveLog. queues: by topic, queue id and whether it is a batch queue."""

    def __init__(self, result, found, unmatched, queues, log, limits):
        """result: a subclass of Pulled. found, unmatched: statuses of a pull with messages, and of one whose filter nothing fits."""
        self.result = result
        self.found = found
        self.unmatched = unmatched
        self.queues = queues
        self.log = log
        self.limits = limits
        self.out = np.empty(min(limits.room, HEAD + 3 * _MOST_ROWS), np.int64)
        self.kept = [None] * KEPT
        self.turn = 0
        self.closed = False

    def hold(self, file, view):
        """Keep the map of a file at hand. A file that is being removed keeps its own."""
        held = Held(view)
        if self.kept[self.turn] is not None:
            self.kept[self.turn].release()
        self.kept[self.turn] = held
        self.turn = (self.turn + 1) % KEPT
        file.held = held
        if file.kept is not None or self.closed:
            held.release()

    def close(self):
        """Let go of all maps; from now on every pull takes the long way."""
        self.closed = True
        for held in self.kept:
            if held is not None:
                held.release()

    def get(self, topic, queue_id, offset, max_count, hashes=None):
        """Pull; None for what must take the long way. hashes: of wanted tags, as an array of 32-bit numbers."""
        if not cython.compiled:
            return None
        for _ in range(3):
            found = self.pull(topic, queue_id, offset, max_count, hashes)
            if found is None or type(found) is self.result:
                return found
            # a file whose map is not at hand: taking it up runs Python code, so everything is looked at anew
            file, of_log = found
            if file.kept is not None:
                return None
            self.hold(file, self.log.view(file) if of_log else file.mapped().data.data)
        return None

    def pull(self, topic, queue_id, offset, max_count, hashes):
        """A result, None, or a file to `hold` and whether it is one of the log."""
        k: cython.Py_ssize_t
        at: cython.longlong
        count: cython.longlong
        low: cython.longlong
        high: cython.longlong
        size: cython.longlong
        start: cython.longlong
        begin: cython.longlong
        taken: cython.longlong
        log_max: cython.longlong
        suggest: cython.bint
        held: Held
        last: LogEnd
        log_file: LogEnd
        limits: Limits = self.limits
        result: Pulled
        files: list
        log_files: list
        queue = self.queues.get((topic, queue_id, False))
        if queue is None:
            return None
        files = queue.files
        log_files = self.log.files
        if self.closed or not files or not log_files or limits.travel_files < 1:
            return None
        try:
            at = c_long(offset)
            count = c_long(max_count)
        except (TypeError, OverflowError):
            return None
        low = c_long(queue.min_logic_offset)
        file = files[len(files) - 1]
        begin = c_long(file.start)
        high = (begin + c_long(file.written)) // 20
        if low < 0 or at < low // 20 or at >= high:
            return None
        low = low // 20
        size = c_long(queue.file_size)
        if at * 20 < begin:
            begin = c_long(files[0].start)
            start = at * 20 // size - begin // size
            if start < 0 or start >= len(files):
                return None
            file = files[start]
            begin = c_long(file.start)
        if at * 20 < begin or at * 20 >= begin + size:
            return None
        found = getattr(file, "held", False)
        if found is False:
            return None  # a queue in memory, whose topic no directory can have
        held = found
        if held is None or held.view is None:
            return file, False
        last = log_files[len(log_files) - 1]
        log_max = last.start + last.written
        start = (at * 20 - begin) // 20
        size = c_long(file.written) // 20
        if start >= size or size * 20 > held.octets.shape[0]:
            return None
        taken = scan(held.octets, start, size, at, count, log_max, limits, self.out, hashes)
        if taken < 0 or (taken == 0 and limits.five and limits.travel_files != 1):
            return None
        at += self.out[0]
        suggest = log_max - self.out[1] > limits.in_memory_bytes
        if taken == 0:
            result = self.result(self.unmatched, at, low, high)
            result.suggest_pulling_from_slave = suggest
            return result
        begin = self.out[3]
        log_file = log_files[0]
        start = begin // last.size - log_file.start // last.size
        if start < 0 or start >= len(log_files):
            return None
        log_file = log_files[start]
        if begin < log_file.start or self.out[4] > log_file.start + log_file.written:
            return None
        held = log_file.held
        if held is None or held.view is None:
            return log_file, True
        view = held.view
        # whoever pulls is about to read
        for k in range(taken):
            start = self.out[6 + 3 * k] - log_file.start
            if 0 <= start and start + self.out[7 + 3 * k] <= held.octets.shape[0]:
                announce(held.octets, start, self.out[7 + 3 * k])
        rows = packed(self.out, 5, 3 * taken)
        size = self.out[2]
        # everything is read; making an object may run the garbage collector, and so Python code
        result = self.result(self.found, at, low, high)
        result.total_bytes = size
        result.message_count = taken
        result.suggest_pulling_from_slave = suggest
        result.rows = rows
        result.start = log_file.start
        result.view = view
        return result
