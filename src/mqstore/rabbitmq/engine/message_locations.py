"""Where the messages of a message store are, and how many queues hold each: about 38 bytes per message.

A start counts the references of all queues (`count_references`), places the ids that it finds in the message files (`place`), and drops
the ids that have no record (`drop_unplaced`). After that `add`, `add_references` and `release` keep the table up to date.

    >>> table = MessageLocations()
    >>> table.add(b"0123456789abcdef", MessageLocation(1, 7, 0, 300))
    >>> table.add_references(b"0123456789abcdef", 1)
    True
    >>> table.get(b"0123456789abcdef")
    MessageLocation(references=2, file=7, offset=0, total=300)
    >>> table.release(b"0123456789abcdef"), table.release(b"0123456789abcdef"), len(table)
    (MessageLocation(references=1, file=7, offset=0, total=300), MessageLocation(references=0, file=7, offset=0, total=300), 0)

Offsets and sizes have 32 bits, as has the number of a file: message files are rolled at 16 MiB.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UnsupportedError
from mqstore.kernels.rabbitmq import id_table

LIMIT = 1 << 32
OVERFLOW_ROWS = 1024  # rows after the last home
BLOCK = 1 << 17
_LOW = LIMIT - 1


class MessageLocation(NamedTuple):
    """Where a message is, and how many queues reference it. total: bytes of its record."""

    references: int
    file: int
    offset: int
    total: int


def _location(third: int, fourth: int) -> MessageLocation:
    return MessageLocation(third & _LOW, third >> 32, fourth >> 32, fourth & _LOW)


class MessageLocations:
    """Locations by message id. unplaced: the number of ids that are referenced but have no place yet."""

    def __init__(self) -> None:
        self.unplaced = 0
        self._count = 0
        self._homes = 1024
        self._salt = secrets.randbits(32)
        self._table = np.zeros((self._homes + OVERFLOW_ROWS, 4), np.uint64)

    def __len__(self) -> int:
        return self._count

    # one message

    def get(self, message_id: bytes) -> MessageLocation | None:
        row = id_table.get(self._table, self._homes, self._salt, message_id)
        return None if row is None else _location(*row)

    def add(self, message_id: bytes, location: MessageLocation) -> None:
        """Add an id that is not in the table. Raises UnsupportedError."""
        references, file, offset, total = location
        if max(references, file, offset, total) >= LIMIT:
            raise UnsupportedError(f"a message of {total} bytes at {offset} of file {file} is beyond the 4 GiB limit of a message file")
        if self._count >= self._most:
            self._grow()
        while not id_table.add(self._table, self._homes, self._salt, message_id, file << 32 | references, offset << 32 | total):
            self._grow()
        self._count += 1

    def add_references(self, message_id: bytes, references: int) -> bool:
        """Add references to an id; return False if it is not in the table."""
        return id_table.count(self._table, self._homes, self._salt, message_id, references) is not None

    def release(self, message_id: bytes) -> MessageLocation | None:
        """Remove a reference, and the id with its last one. Returns the location after that, None for an unknown id."""
        row = id_table.count(self._table, self._homes, self._salt, message_id, -1)
        if row is None:
            return None
        location = _location(*row)
        if not location.references:
            self._count -= 1
        return location

    # many

    def count_references(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> None:
        """Count one reference to each id; new ids are added without a place."""
        done = 0
        while done < len(hi):
            looked, added = id_table.refer(self._table, self._homes, self._salt, hi, lo, done, self._most - self._count)
            done += looked
            self._count += added
            self.unplaced += added
            if done < len(hi):
                self._grow()

    def place(
        self,
        number: int,
        ids: tuple[NDArray[np.int64], NDArray[np.int64]],
        at: NDArray[np.int64],
        total: NDArray[np.int64],
        before: int | None = None,
    ) -> None:
        """Place the records of a file: ids without a place get one, ids placed in this file (or in `before`) get the new one.

        Raises UnsupportedError for a file of 4 GiB and more.
        """
        if number >= LIMIT or (len(at) and int((at + total).max()) >= LIMIT):
            raise UnsupportedError(
                f"message file {number} has records beyond 4 GiB or a number beyond 2^32; use `mqstore salvage` to read it"
            )
        current = number if before is None else before
        self.unplaced -= id_table.place(self._table, self._homes, self._salt, *ids, number, at, total, current)

    def are_current(self, number: int, ids: tuple[NDArray[np.int64], NDArray[np.int64]], at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each record of a file whether the table has its message at this very place."""
        result = np.zeros(len(at), np.uint8)
        id_table.stands(self._table, self._homes, self._salt, *ids, number, at, result)
        return result.view(np.bool_)

    def placed(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each id whether it has a place."""
        result = np.zeros(len(hi), np.uint8)
        id_table.placed(self._table, self._homes, self._salt, hi, lo, result)
        return result.view(np.bool_)

    def drop_unplaced(self) -> None:
        """Remove the ids without a place."""
        if self.unplaced:
            self._count -= id_table.drop_unplaced(self._table)
            self.unplaced = 0
            id_table.stretch(self._table, self._homes, self._salt)

    def bytes_by_file(self) -> dict[int, tuple[int, int]]:
        """Return for each file with messages (bytes of their records, end of the last one)."""
        sums: dict[int, tuple[int, int]] = {}
        for rows in self.rows():
            rows = rows[rows[:, 3] & np.uint64(_LOW) != 0]
            numbers, which = np.unique(rows[:, 2] >> np.uint64(32), return_inverse=True)
            total = (rows[:, 3] & np.uint64(_LOW)).astype(np.int64)
            ends = np.zeros(len(numbers), np.int64)
            np.maximum.at(ends, which, (rows[:, 3] >> np.uint64(32)).astype(np.int64) + total)
            valid = np.zeros(len(numbers), np.int64)
            np.add.at(valid, which, total)
            for number, size, end in zip(numbers.tolist(), valid.tolist(), ends.tolist(), strict=True):
                before = sums.get(number, (0, 0))
                sums[number] = before[0] + size, max(before[1], end)
        return sums

    def of_file(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and sizes of the live records of a file, ascending."""
        file, low = np.uint64(number), np.uint64(_LOW)
        parts = [rows[(rows[:, 2] >> np.uint64(32) == file) & (rows[:, 3] & low != 0), 3] for rows in self.rows()]
        places = np.sort(np.concatenate(parts))
        return (places >> np.uint64(32)).astype(np.int64), (places & np.uint64(_LOW)).astype(np.int64)

    def rows(self) -> Iterator[NDArray[np.uint64]]:
        """Yield all rows in blocks: two halves of the id, file and references, offset and size of the record."""
        for start in range(0, len(self._table), BLOCK):
            rows = self._table[start : start + BLOCK]
            yield rows[rows[:, 2] != 0]

    # room

    @property
    def _most(self) -> int:
        """The number of ids above which the table grows."""
        return self._homes * 9 // 10

    def _grow(self) -> None:
        """Enlarge the table by an eighth, in place if the system can; no second table is needed."""
        while True:
            self._homes += self._homes // 8
            # nothing else references the array: a kernel releases it when it returns
            self._table.resize((self._homes + OVERFLOW_ROWS, 4), refcheck=False)
            if id_table.stretch(self._table, self._homes, self._salt) != id_table.FULL:
                return
