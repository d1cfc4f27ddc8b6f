"""The number of entries of a segment, from the files of a vhost alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import RABBITMQ, GoldenCase, case_id, opened
from support.rabbitmq_index import message_id

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.format import journal, segment
from mqstore.rabbitmq.format.vhost_config import inferred_entry_count
from mqstore.rabbitmq.store.store import RabbitMQStore


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_what_a_node_left_shows_its_number_or_nothing_depends_on_it(case: GoldenCase) -> None:
    store = RabbitMQStore(opened(case))
    for vhost in store.vhosts:
        found = inferred_entry_count(store.directory, [queue.place.place for queue in vhost.queues])
        assert found is None or found.entries == vhost.entry_count or not found.proved
        assert vhost.inferred_count is None, "there is a .config"


def published(*numbers: int) -> bytes:
    return b"".join(segment.publish(number, message_id(number), b"", size=1) for number in numbers)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"0.idx": published(5, 2047), "1.idx": published(3)}, (2048, True)),
        ({"0.idx": published(5, 16383), "1.idx": published(3)}, (16384, True)),
        ({"0.idx": published(5, 2048)}, (16384, True)),  # more than 2048 allow
        ({"0.idx": published(1, 2047), "journal.jif": journal.acknowledge(2050)}, (2048, True)),
        ({"3.idx": published(5, 1700), "journal.jif": journal.acknowledge(6149)}, (2048, True)),
        ({"0.idx": published(5, 6)}, (2048, False)),
        ({}, (2048, False)),
        ({"0.idx": published(5, 700), "1.idx": published(3)}, None),  # the last ones may have been transient
        ({"3.idx": published(5, 1700)}, None),
    ],
)
def test_full_segments_and_the_numbers_of_a_journal_show_it(
    files: dict[str, bytes], wanted: tuple[int, bool] | None, tmp_path: Path
) -> None:
    (tmp_path / "queue").mkdir()
    for name, content in files.items():
        (tmp_path / "queue" / name).write_bytes(content)
    assert inferred_entry_count(ReadOnlyDirectory(tmp_path), ["queue"]) == wanted
