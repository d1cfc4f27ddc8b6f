"""Names of tiered storage, as a real 5.5.0 store gave them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePath

import pytest
from support.tiered import unpack

from mqstore.rocketmq.format.log_file import is_tier, segment_kind


def test_the_segments_of_a_real_store_are_known_by_their_names(tmp_path: Path) -> None:
    _, tier = unpack(tmp_path)
    files = [path for path in tier.rglob("*") if path.is_file()]
    assert Counter(segment_kind(path) for path in files) == {"COMMIT_LOG": 7, "CONSUME_QUEUE": 8, "INDEX": 2}
    assert is_tier({path.name for path in tier.iterdir()})
    queue = files[0].parent.parent
    assert is_tier({path.name for path in queue.iterdir()})
    assert all(is_tier({path.name for path in kind.iterdir()}) for kind in queue.iterdir())


@pytest.mark.parametrize(
    "path",
    [
        "CONSUME_QUEUE/00000000000000000000",
        "CONSUME_QUEUE/cfcd208500000000000000000000",  # the digits of another offset
        "consumequeue/cfcd208400000000000000000000",
        "CONSUME_QUEUE/cfcd2084",
    ],
)
def test_other_files_are_not_taken_for_segments(path: str) -> None:
    assert segment_kind(PurePath(path)) is None


def test_other_directories_are_not_taken_for_tiered_storage() -> None:
    assert not is_tier({"commitlog", "00000000000000000000", "212d6b50_OtherCluster", "_"})
