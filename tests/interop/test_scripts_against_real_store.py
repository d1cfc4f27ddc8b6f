"""Random scripts on our store engine and on the real one: the same answers, the same bytes, and each can take over the other's store.

`interop.laboratory` runs the scripts on both sides and compares them. `--scripts N` sets how many scripts a version gets,
`--first-script N` the number of the first; a failure names the script, which `random_script(number, version)` generates again. Versions
that follow the rules of another one get fewer, without what they do differently (`interop.scripts`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from interop.laboratory import FOUND, WAYS, Check, Laboratory, put_answers, run_scripts, same_checkpoint, same_files, same_findings
from interop.realbroker import FURTHER_VERSIONS, VERSIONS, why_not
from interop.scripts import random_script

SHARE_OF_FURTHER = 15  # scripts of each further version, for a hundred of the others

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]


def each(lab: Laboratory, check: Check) -> None:
    """Check every script; fail with all differences, each line with its script."""
    wrong = [f"script {script.seed}: {line}" for script in lab.scripts for line in check(lab, script)]
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} differences ({lab.version}); the first:", *wrong[:40]]), pytrace=False)


@pytest.fixture(scope="module", params=(*VERSIONS, *FURTHER_VERSIONS))
def laboratory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    version = request.param
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)
    start, count = request.config.getoption("first_script"), request.config.getoption("scripts")
    if version in FURTHER_VERSIONS:
        count = -(-count * SHARE_OF_FURTHER // 100)
    scripts = [random_script(seed, version) for seed in range(start, start + count)]
    print(f"{version}: scripts {start} to {start + count - 1}")
    lab = run_scripts(version, tmp_path_factory.mktemp(f"scripts-{version}"), scripts)
    yield lab
    shutil.rmtree(lab.root)


def test_every_put_is_answered_as_the_real_store_answers_it(laboratory: Laboratory, record_property: Callable[[str, object], None]) -> None:
    record_property("scripts", len(laboratory.scripts))
    each(laboratory, put_answers("first"))


def test_log_queues_and_index_are_byte_for_byte_those_of_the_real_store(laboratory: Laboratory) -> None:
    each(laboratory, same_files("first"))


def test_a_killed_store_is_byte_for_byte_that_of_the_real_one(laboratory: Laboratory) -> None:
    each(laboratory, same_files("killed"))


def test_the_checkpoint_of_a_clean_close_confirms_what_the_real_store_confirms(laboratory: Laboratory) -> None:
    each(laboratory, same_checkpoint)


@pytest.mark.parametrize(("way", "killed"), WAYS)
def test_a_store_that_is_taken_over_is_continued_as_its_writer_would(laboratory: Laboratory, way: str, killed: str | None) -> None:
    each(laboratory, put_answers(way))
    each(laboratory, same_files(way, killed))


@pytest.mark.parametrize("what", FOUND)
def test_the_real_store_finds_in_ours_what_we_find(laboratory: Laboratory, what: str) -> None:
    each(laboratory, same_findings(what))
