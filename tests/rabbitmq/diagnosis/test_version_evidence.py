"""Which version wrote a RabbitMQ store: what the stores of real nodes show, with their metadata and without."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from support.archives import extract_all
from support.golden import GOLDEN, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, opened, run_cli, unpack_node_site

import mqstore
from mqstore.rabbitmq.definitions.feature_flags import FLAGS, RELEASES, missing_flags, read_flags, releases
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.version import version_evidence

WITHOUT_METADATA = {
    "3.8.9": {"3.8 to 3.12"},
    "3.10.8": {"3.8 to 3.12", "3.10 to 3.12"},
    "4.0.5": {"3.13 or later"},
    "4.3.6": {"3.13 or later", "4.3"},
}


@pytest.mark.parametrize("case", [*OTHER_RABBITMQ, *RABBITMQ[:4]], ids=case_id)
def test_messages_and_files_of_a_store_without_metadata_show_a_range_of_versions(case: GoldenCase) -> None:
    document = run_cli("inspect", opened(case), "-o", "json").document
    assert document["suggested_version"] in WITHOUT_METADATA[case.version]
    shown = " ".join(run_cli("inspect", opened(case)).stdout.split())
    assert f"Node: {document['suggested_version']}: {document['version_known_from']}." in shown


def test_without_flags_and_messages_nothing_shows_the_version(tmp_path: Path) -> None:
    (tmp_path / "node" / "msg_stores" / "vhosts").mkdir(parents=True)
    assert version_evidence(mqstore.open(tmp_path / "node")).version is None
    (tmp_path / "node" / "feature_flags").write_text("[quorum_queue,'rabbitmq_4.0.0','rabbitmq_4.1.0'].\n")
    shown = version_evidence(mqstore.open(tmp_path / "node"))
    assert shown.version == "4.1"
    assert shown.why.startswith("feature_flags names rabbitmq_4.1.0, which 4.1.0 is the first to have; it does not name")
    (tmp_path / "node" / "feature_flags").write_text("[quorum_queue,'rabbitmq_4.9.0',of_a_plugin].\n")
    assert version_evidence(mqstore.open(tmp_path / "node")).version == "4.9 or later"
    (tmp_path / "node-feature_flags").write_bytes(b"\xff[[")
    assert version_evidence(mqstore.open(tmp_path / "node")).version is None


def _node_with_flags(archive: str, target: Path) -> Path:
    """Unpack a node of a golden archive, with its flags beside it as a node keeps them."""
    with tarfile.open(GOLDEN / archive / "data.tar.xz") as packed:
        extract_all(packed, target)
    (target / "feature_flags").rename(target / "node-feature_flags")
    return target / "node"


@pytest.mark.parametrize(
    ("archive", "version", "range_"),
    [
        ("rabbitmq-quorum/3.8.9/a-quorum-mix-kill9", "3.8", "3.8 to 3.10"),
        ("rabbitmq-quorum/3.10.8/c-quorum-cursors-kill9", "3.10", "3.10 or 3.11"),
        ("rabbitmq-streams/3.10.8-clean", "3.10", "3.10 or 3.11"),
        ("rabbitmq-streams/4.0.5-killed", "4.0", "4.0 to 4.2"),
        ("rabbitmq-quorum/4.3.6/b-quorum-mix-clean", "4.3", "4.3"),
    ],
)
def test_flags_beside_the_directory_of_a_real_node_give_its_release_or_a_range_that_begins_with_it(
    archive: str, version: str, range_: str, tmp_path: Path
) -> None:
    shown = version_evidence(mqstore.open(_node_with_flags(archive, tmp_path)))
    assert (shown.oldest, shown.version) == (version, range_), shown.why
    assert "../node-feature_flags names" in shown.why


@pytest.mark.parametrize("release", RELEASES)
def test_the_flags_of_a_new_node_of_every_release_give_a_range_that_begins_with_it(release: str) -> None:
    number = [int(each) for each in release.split(".")]
    enabled = {name for name, flag in FLAGS.items() if [int(each) for each in flag.since.split(".")[:2]] <= number}
    fit = releases(enabled - {"user_limits", "maintenance_mode_status"} if release == "3.8" else enabled)
    assert fit[0] == release
    # no node of a release that requires what is not enabled can have written the list
    assert all(not missing_flags(enabled, each) for each in fit)
    after = RELEASES[RELEASES.index(release) + 1 :]
    assert set(after[2:]).isdisjoint(fit) or release in ("3.13", "4.0"), fit


def test_flags_are_read_in_every_form_that_nodes_write() -> None:
    assert read_flags(b"[a_flag,\n 'rabbitmq_4.0.0'].\n") == {"a_flag", "rabbitmq_4.0.0"}
    assert read_flags(b"[].\n") == frozenset()
    assert read_flags(b"") is read_flags(b"[cut_off,") is read_flags(b"{[a]}.") is None


@pytest.mark.parametrize(
    ("version", "starts"),
    [(None, True), ("3.10.8", True), ("3.11", True), ("3.12", False), ("3.13", False), ("4.0.5", False), ("4.3", False)],
)
def test_a_release_that_requires_flags_which_the_old_node_lacks_does_not_start(version: str | None, starts: bool, tmp_path: Path) -> None:
    store = RabbitMQStore(unpack_node_site("plain", tmp_path))
    answer = diagnose(store, version)
    assert answer.starts is starts, answer.evidence
    assert answer.version == (version or "3.10")
    obstacles = [item for item in answer.evidence if item.finding == "feature-flags"]
    assert bool(obstacles) is not starts
    assert starts or "failed_to_initialize_feature_flags_registry" in obstacles[0].detail
    assert starts or answer.next.startswith("mqstore rescue")


@pytest.mark.parametrize(("version", "starts"), [("3.10.8", False), ("3.9", False), ("3.11", True)])
def test_a_node_before_3_11_does_not_start_where_a_newer_one_has_deleted_its_table(version: str, starts: bool, tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    flags = [name for name, flag in FLAGS.items() if flag.since.startswith(("3.8", "3.9", "3.10", "3.11"))]
    (tmp_path / "rabbit@oldhost-feature_flags").write_text(f"[{','.join(flags)}].")
    answer = diagnose(RabbitMQStore(node), version)
    assert answer.starts is starts
    assert starts or "table_missing rabbit_listener" in answer.evidence[0].detail


def test_without_the_flags_it_is_not_told_whether_another_release_starts(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (tmp_path / "rabbit@oldhost-feature_flags").unlink()
    answer = diagnose(RabbitMQStore(node), "4.0")
    assert answer.starts
    assert any("cannot be told without the file <node>-feature_flags" in each for each in answer.unknown)


def test_without_flags_the_other_marks_of_a_node_give_a_range_that_rescue_says_too(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    for place in ("msg_stores", "quorum"):
        shutil.rmtree(node / place)
    flags = tmp_path / "rabbit@oldhost-feature_flags"
    flags.write_text("[from_the_future].\n")
    shown = version_evidence(mqstore.open(node))
    assert (shown.version, shown.oldest) == ("3.9 to 4.1", "3.9")
    assert shown.why.endswith("../rabbit@oldhost-feature_flags names no feature flag that is known")
    flags.unlink()
    (node / "schema_version").unlink()
    (tmp_path / "enabled_plugins").write_text("[rabbitmq_management,rabbitmq_stream].\n")
    assert version_evidence(mqstore.open(node)).version == "3.11 to 4.1"
    shutil.rmtree(node / "coordination")
    (node / "schema_version").write_text("[].\n")
    shown = version_evidence(mqstore.open(node))
    assert (shown.version, shown.why) == ("3.9 or later", "../enabled_plugins names rabbitmq_stream, which 3.9 is the first to have")
    rescued = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.0", "-o", "json").document
    assert (rescued["suggested_version"], rescued["version_known_from"]) == (shown.version, shown.why)
    assert f"The old node: {shown.version} ({shown.why})." in (tmp_path / "out" / "STEPS.md").read_text()
    (tmp_path / "enabled_plugins").unlink()
    assert version_evidence(mqstore.open(node)).version is None


def test_a_copy_under_another_name_has_the_flags_of_its_node(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path).rename(tmp_path / "old-copy")
    shown = version_evidence(mqstore.open(node))
    assert shown.version == "3.10 or 3.11"
    assert shown.why.startswith("../rabbit@oldhost-feature_flags names classic_mirrored_queue_version")


def test_the_format_page_has_the_flags_by_release() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "rabbitmq.md").read_text().partition("### 11.3")[2]
    for name, flag in FLAGS.items():
        named = f"{name} ({flag.plugin})" if flag.plugin else name
        assert f"| {named} | {flag.since} | {flag.required or '–'} | {flag.enabled or '–'} |\n" in page
