"""Where the log of a DLedger group ends when the real store of 5.5.0 loads the files of one member, beside what `diagnose` says."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.realbroker import Job, run, why_not
from support.golden import opened
from support.group_logs import CASE, HEADER, damaged
from support.ports import free_port

from mqstore.errors import UnsupportedError
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

VERSION = "5.5.0"
SIZES = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400"}
END = 21391  # of the sound log


def test_the_real_store_ends_the_log_where_diagnose_says_so(tmp_path: Path) -> None:
    if (reason := why_not(VERSION)) is not None:
        pytest.skip(reason)
    places = {"sound": opened(CASE)}
    for name, at in (("magic", 3), ("index", 15), ("body", HEADER + 88)):
        places[name], entry = damaged(tmp_path / name, at, 1)
    jobs = []
    for name, store in places.items():
        group = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerPeers": f"n0-127.0.0.1:{free_port()}", "dLegerSelfId": "n0"}
        jobs.append(Job(name, ("boot", str(store), "--tmp", str(tmp_path), "--no-start"), {**SIZES, **group}))
    done = run(VERSION, jobs, tmp_path / "work", threads=2)
    ends = {name: row.rows[0]["max_phy_offset_after_load"] for name, row in done.items()}
    assert ends == {"sound": END, "magic": entry, "index": entry, "body": END}
    for name, store in places.items():
        with pytest.raises(UnsupportedError) as told:
            diagnose(open_rocketmq(store))
        assert (f"the header of the entry at {entry} is damaged" in str(told.value)) is (ends[name] == entry)
