"""What a diagnosis says of the log of a DLedger group: what is certain of one member, and that the rest cannot be determined."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import opened, run_cli, unchanged
from support.group_logs import CASE, HEADER, damaged

from mqstore.errors import UnsupportedError
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose


def answer(store: Path) -> str:
    with pytest.raises(UnsupportedError, match="it cannot be determined whether a broker starts") as error:
        diagnose(open_rocketmq(store))
    return str(error.value)


def test_of_a_sound_log_the_rest_of_the_group_is_what_is_not_known() -> None:
    with unchanged(opened(CASE)):
        found = answer(opened(CASE))
    assert "the other members of the group decide" in found
    assert found.endswith("What is certain of this member: 40 messages of its log can be read; nothing of its log is damaged")
    told = run_cli("diagnose", opened(CASE))
    assert (told.status, told.stdout) == (3, "")


@pytest.mark.parametrize("at", [3, 7, 15, 31, 47], ids=["magic", "size", "index", "position", "body-size"])
def test_the_log_ends_before_an_entry_whose_header_is_damaged(at: int, tmp_path: Path) -> None:
    """The real store of 5.5.0 loads each of these up to the entry, at 11539."""
    store, entry = damaged(tmp_path / "store", at, 4)
    assert entry == 11539
    found = answer(store)
    assert f"the header of the entry at {entry} is damaged, and a broker loads the log up to there" in found
    assert "nothing of its log is damaged" not in found


@pytest.mark.parametrize("at", [HEADER + 4, HEADER + 8, HEADER + 88], ids=["magic", "checksum", "body"])
def test_a_damaged_record_in_a_sound_entry_does_not_end_the_log(at: int, tmp_path: Path) -> None:
    store, _ = damaged(tmp_path / "store", at, 1)
    found = answer(store)
    assert found.endswith("1 message of what a broker loads is damaged")
    assert "header" not in found
