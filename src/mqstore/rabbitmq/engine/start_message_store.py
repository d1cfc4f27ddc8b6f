"""Start of a writable message store: count references from the queues, find records by scanning the files.

    1. every live, persistent entry of a queue that does not embed its message counts one reference to its id
    2. `<k>.rdq` are scanned by number; a record is valid if its id is referenced and has no place yet; within one file the last copy counts
    3. a file without a valid record is deleted; the last file is truncated after its last valid record and continued
    4. queues drop the entries whose id has no record

This is the broker's own procedure. This engine also recovers what the broker misses: records after damage, and records in a `<k>.rdt`
that an interrupted merge left. They are appended to the store, and only then is the `.rdt` deleted.

Format: docs/formats/rabbitmq.md, sections 6.7 to 6.9.
"""

from __future__ import annotations

import numpy as np

from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.live_message_store import DRAFT, FileSummary, LiveMessageStore
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.format import message_file

__all__ = ["start_message_store"]


def start_message_store(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, limit: int, locations: MessageLocations
) -> LiveMessageStore:
    """Recover a message store. locations: the references of all queues; ids without a record are left unplaced."""
    directory.make_directory(place)
    numbers, left_over = _list_files(directory, reading, place)
    sizes: dict[int, int] = {}
    broken: list[str] = []
    for number in numbers:
        name = f"{place}/{number}.rdq"
        mapped = reading.map(name)
        data = mapped.data
        scan = message_file.strict_scan(data)
        locations.place(number, message_file.ids(data, scan.at), scan.at, scan.total)
        sizes[number] = scan.end
        if mapped.last_nonzero(scan.end, mapped.size) >= 0:
            broken.append(name)
    rescued: dict[bytes, bytes] = {}
    for number in left_over:
        if locations.unplaced:
            _rescue(locations, reading.map(f"{place}/{number}.rdt"), rescued, missed_only=False)
    # a size field that is too large leads past other records, so that nothing but their absence shows it
    for name in dict.fromkeys((*broken, *(f"{place}/{number}.rdq" for number in numbers))):
        if locations.unplaced > len(rescued):
            _rescue(locations, reading.map(name), rescued, missed_only=True)
    store = LiveMessageStore(directory, reading, place, limit)
    _adopt(store, locations, sizes, directory)
    for message_id, term in rescued.items():
        store.write_again(message_id, term)
    store.sync()
    for number in left_over:
        directory.remove(f"{place}/{number}.rdt")
    store.collect()
    return store


def _rescue(locations: MessageLocations, mapped: MappedFile, rescued: dict[bytes, bytes], *, missed_only: bool) -> None:
    """Add to `rescued` the terms of unplaced ids that only the careful scan finds; of several copies the last.

    missed_only: the file's other records have been looked at.
    """
    data = mapped.data
    found = message_file.careful_scan(data, list(mapped.data_extents()))
    missed = ~np.isin(found.at, message_file.strict_scan(data).at) if missed_only else np.ones(len(found.at), np.bool_)
    for at, total in zip(found.at[missed].tolist(), found.total[missed].tolist(), strict=True):
        message_id = data[at + 8 : at + 24].tobytes()
        known = locations.get(message_id)
        if known is not None and not known.total:
            rescued[message_id] = data[at + 24 : at + total - 1].tobytes()


def _list_files(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> tuple[list[int], list[int]]:
    """Return numbers of the `.rdq` and `.rdt` files. Drafts of an interrupted merge are removed."""
    numbers: dict[str, list[int]] = {".rdq": [], ".rdt": []}
    for entry in reading.entries(place):
        stem, suffix = entry.name[:-4], entry.name[-4:]
        if DRAFT in entry.name:
            directory.remove(f"{place}/{entry.name}")
        elif suffix in numbers and stem.isascii() and stem.isdigit() and entry.is_file:
            numbers[suffix].append(int(stem))
    return sorted(numbers[".rdq"]), sorted(numbers[".rdt"])


def _adopt(store: LiveMessageStore, locations: MessageLocations, sizes: dict[int, int], directory: DurableDirectory) -> None:
    live = locations.bytes_by_file()
    files = {}
    last = max(sizes, default=-1)
    for number, size in sizes.items():
        valid, end = live.get(number, (0, 0))
        if number == last:
            directory.truncate(store.name(number), end)
            directory.sync(store.name(number))
            files[number] = FileSummary(valid, end)
        elif valid:
            files[number] = FileSummary(valid, size)
        else:
            directory.remove(store.name(number))
    store.adopt(locations, files)
