"""The fast path of a pull: from a place in a queue to the entries of its messages, without a Python call in between.

`scan` goes over the written entries of one queue file, by all the rules of a pull (`mqstore.rocketmq.query.pull`), for both versions. It
gives up if a rule needs more than the entries: an address in the extended queue, an entry that is not valid. `PullPath.get` scans for an
open store, and returns None for everything but an ordinary answer: messages in one file of the log, or none that match
the filter. Then the slow path takes over, which handles the rest.

No lock is taken: all of it runs in one piece, because nothing in it calls Python code or releases the interpreter's lock before
everything is read.

The result of a fast pull keeps its rows as native 64-bit numbers (queue offset, physical offset, size) and makes slices and
lists of them only on demand.
"""

from __future__ import annotations

import struct

import cython
import numpy as np


class MappedBytes:
    """The bytes of a mapped file, ready to read. view: None after `release`."""

    def __init__(self, view):
        self.view = view
        self.octets = view

    def release(self):
        """Release the map. Slices of it stay valid."""
        self.view = None
        self.octets = b""


class PullResult:
    """The result of a pull, see `mqstore.rocketmq.query.pull.GetResult`."""

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

    def set_rows(self, rows, start, view):
        """Set the messages to those of the rows, in a log file that begins at physical offset start; view: its bytes."""
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
        self._queue_offsets, self._physical_offsets, self._sizes = (
            list(numbers[::ROW_NUMBERS]),
            list(numbers[1::ROW_NUMBERS]),
            list(numbers[2::ROW_NUMBERS]),
        )


class Limits:
    """The limits of a pull, see `mqstore.rocketmq.query.pull.PullRules`. bytes_*: at most the limit of one answer."""

    def __init__(
        self,
        *,
        goes_on_to_next_file,
        in_memory_bytes,
        travel_files,
        max_filter_bytes,
        count_in_memory,
        bytes_in_memory,
        count_on_disk,
        bytes_on_disk,
    ):
        self.goes_on_to_next_file = goes_on_to_next_file
        self.in_memory_bytes = in_memory_bytes
        self.travel_files = travel_files
        self.max_filter_bytes = max_filter_bytes
        self.count_in_memory = count_in_memory
        self.bytes_in_memory = bytes_in_memory
        self.count_on_disk = count_on_disk
        self.bytes_on_disk = bytes_on_disk

    @property
    def room(self):
        """The most numbers that `scan` writes."""
        return SCAN_HEADER + ROW_NUMBERS * (max(self.count_in_memory, self.count_on_disk, 1) + 1)


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
    """Take messages of the entries first..stop-1 of a queue file; return their number, UNDECIDED if that takes more than the entries.

    offset: queue offset of the first entry. log_max: end of the log. hashes: of wanted tags, None for every message.
    out: SCAN_HEADER numbers (SCAN_CONSUMED, ...), then the rows.
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
    max_messages: cython.longlong
    max_bytes: cython.longlong
    goes_on_to_next_file: cython.bint = limits.goes_on_to_next_file
    filtered: cython.bint = hashes is not None
    wanted: cython.bint
    if first < 0 or stop > b.shape[0] // ENTRY_SIZE or out.shape[0] < SCAN_HEADER + ROW_NUMBERS:
        raise ValueError("arrays are too small")
    if max_count > MAX_ENTRIES or max_count < -MAX_ENTRIES:
        return UNDECIDED
    if max_count * ENTRY_SIZE > limit:
        limit = max_count * ENTRY_SIZE
    for k in range(stop - first):
        if k * ENTRY_SIZE >= limit:
            break
        p = ENTRY_SIZE * (first + k)
        physical = i64(b, p + ENTRY_AT_OFFSET)
        size = i32(b, p + ENTRY_AT_SIZE)
        if physical < 0 or size <= 0:
            return UNDECIDED
        if not goes_on_to_next_file:
            examined = physical
        if taken > 0:
            if log_max - physical > limits.in_memory_bytes:
                max_messages = limits.count_on_disk
                max_bytes = limits.bytes_on_disk
            else:
                max_messages = limits.count_in_memory
                max_bytes = limits.bytes_in_memory
            if taken >= max_count or taken >= max_messages or total + size > max_bytes:
                break
        examined = physical
        consumed = k + 1
        if filtered:
            code = i64(b, p + ENTRY_AT_TAGS_CODE)
            if code < LEAST_TAGS_CODE:
                return UNDECIDED
            word = i32(b, p + ENTRY_AT_TAGS_HASH)
            wanted = False
            for h in range(hashes.shape[0]):
                if hashes[h] == word:
                    wanted = True
                    break
            if not wanted:
                continue
        at = SCAN_HEADER + ROW_NUMBERS * taken
        if at + ROW_NUMBERS > out.shape[0]:
            return UNDECIDED
        if taken == 0 or physical < lowest:
            lowest = physical
        if physical + size > end:
            end = physical + size
        out[at + ROW_QUEUE_OFFSET] = offset + k
        out[at + ROW_PHYSICAL_OFFSET] = physical
        out[at + ROW_SIZE] = size
        taken += 1
        total += size
    out[SCAN_CONSUMED] = consumed
    out[SCAN_EXAMINED] = examined
    out[SCAN_BYTES] = total
    out[SCAN_LOWEST] = lowest
    out[SCAN_END] = end
    return taken


class PullPath:
    """The fast path of an open store. log: its commit log writer. queues: by topic, queue id and whether it is a batch queue."""

    def __init__(self, result, found, unmatched, queues, log, limits):
        """result: a subclass of PullResult. found, unmatched: statuses of a pull with messages, and of one whose filter matches none."""
        self.result = result
        self.found = found
        self.unmatched = unmatched
        self.queues = queues
        self.log = log
        self.limits = limits
        self.out = np.empty(min(limits.room, SCAN_HEADER + ROW_NUMBERS * MAX_ROWS), np.int64)
        self.kept = [None] * MAX_MAPS
        self.turn = 0
        self.closed = False

    def hold(self, file, view):
        """Keep the map of a file ready. A file that is being removed keeps its own."""
        mapped = MappedBytes(view)
        if self.kept[self.turn] is not None:
            self.kept[self.turn].release()
        self.kept[self.turn] = mapped
        self.turn = (self.turn + 1) % MAX_MAPS
        file.mapped_bytes = mapped
        if file.kept is not None or self.closed:
            mapped.release()

    def close(self):
        """Release all maps; from now on every pull takes the slow path."""
        self.closed = True
        for mapped in self.kept:
            if mapped is not None:
                mapped.release()

    def get(self, topic, queue_id, offset, max_count, hashes=None):
        """Pull; return None if the pull must take the slow path. hashes: of wanted tags, as an array of 32-bit numbers."""
        for _ in range(3):
            found = self.pull(topic, queue_id, offset, max_count, hashes)
            if found is None or type(found) is self.result:
                return found
            # a file whose map is not ready: mapping it runs Python code, so everything is read again
            file, of_log = found
            if file.kept is not None:
                return None
            self.hold(file, self.log.view(file) if of_log else file.mapped().data.data)
        return None

    def pull(self, topic, queue_id, offset, max_count, hashes):
        """Return a result, None, or a file to `hold` and whether it is a file of the log."""
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
        mapped: MappedBytes
        last: LogEnd
        log_file: LogEnd
        limits: Limits = self.limits
        result: PullResult
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
        high = (begin + c_long(file.written)) // ENTRY_SIZE
        if low < 0 or at < low // ENTRY_SIZE or at >= high:
            return None
        low = low // ENTRY_SIZE
        size = c_long(queue.file_size)
        if at * ENTRY_SIZE < begin:
            begin = c_long(files[0].start)
            start = at * ENTRY_SIZE // size - begin // size
            if start < 0 or start >= len(files):
                return None
            file = files[start]
            begin = c_long(file.start)
        if at * ENTRY_SIZE < begin or at * ENTRY_SIZE >= begin + size:
            return None
        found = getattr(file, "mapped_bytes", False)
        if found is False:
            return None  # a queue in memory: its topic cannot be the name of a directory
        mapped = found
        if mapped is None or mapped.view is None:
            return file, False
        last = log_files[len(log_files) - 1]
        log_max = last.start + last.written
        start = (at * ENTRY_SIZE - begin) // ENTRY_SIZE
        size = c_long(file.written) // ENTRY_SIZE
        if start >= size or size * ENTRY_SIZE > mapped.octets.shape[0]:
            return None
        taken = scan(mapped.octets, start, size, at, count, log_max, limits, self.out, hashes)
        if taken < 0 or (taken == 0 and limits.goes_on_to_next_file and limits.travel_files != 1):
            return None
        at += self.out[SCAN_CONSUMED]
        suggest = log_max - self.out[SCAN_EXAMINED] > limits.in_memory_bytes
        if taken == 0:
            result = self.result(self.unmatched, at, low, high)
            result.suggest_pulling_from_slave = suggest
            return result
        begin = self.out[SCAN_LOWEST]
        log_file = log_files[0]
        start = begin // last.size - log_file.start // last.size
        if start < 0 or start >= len(log_files):
            return None
        log_file = log_files[start]
        if begin < log_file.start or self.out[SCAN_END] > log_file.start + log_file.written:
            return None
        mapped = log_file.mapped_bytes
        if mapped is None or mapped.view is None:
            return log_file, True
        view = mapped.view
        # the caller is about to read the records
        for k in range(taken):
            start = self.out[SCAN_HEADER + ROW_NUMBERS * k + ROW_PHYSICAL_OFFSET] - log_file.start
            size = self.out[SCAN_HEADER + ROW_NUMBERS * k + ROW_SIZE]
            if 0 <= start and start + size <= mapped.octets.shape[0]:
                announce(mapped.octets, start, size)
        rows = packed(self.out, SCAN_HEADER, ROW_NUMBERS * taken)
        size = self.out[SCAN_BYTES]
        # everything is read; making an object may run the garbage collector, which runs Python code
        result = self.result(self.found, at, low, high)
        result.total_bytes = size
        result.message_count = taken
        result.suggest_pulling_from_slave = suggest
        result.rows = rows
        result.start = log_file.start
        result.view = view
        return result
