"""Which release starts on the data directory of another, as `diagnose --for` judges it by the feature flags, against nodes that start."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from interop.rabbitmq.other_node import SUITES, missing, other_node
from support.archives import extract_all
from support.golden import GOLDEN

from mqstore.rabbitmq.definitions.feature_flags import FLAGS
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.store.store import RabbitMQStore

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

OF_3_13 = {name for name, flag in FLAGS.items() if flag.since.startswith("3.") and name != "khepri_db" and not flag.plugin}


def _flags(node: Path, names: set[str] | None) -> None:
    """Put the flags that the old node had, or others, where a node looks for them."""
    file = node.with_name(f"{node.name}-feature_flags")
    shutil.move(node.with_name("feature_flags"), file)
    if names is not None:
        file.write_text(f"[{','.join(sorted(names))}].\n")


@pytest.mark.parametrize(
    ("archive", "flags", "suite", "starts"),
    [
        ("rabbitmq-streams/3.10.8-clean", None, "trixie", False),
        ("rabbitmq-streams/3.10.8-clean", None, "sid", False),
        ("rabbitmq-streams/4.0.5-killed", None, "trixie", True),
        ("rabbitmq-streams/4.0.5-killed", None, "sid", True),
        ("rabbitmq-streams/4.0.5-killed", OF_3_13, "trixie", True),
        ("rabbitmq-streams/4.0.5-killed", OF_3_13 - {"stream_filtering"}, "trixie", False),
    ],
)
def test_a_release_starts_where_diagnose_says_so(archive: str, flags: set[str] | None, suite: str, starts: bool) -> None:
    if why := missing(suite):
        pytest.skip(why)
    with other_node(suite) as node:
        with tarfile.open(GOLDEN / archive / "data.tar.xz") as packed:
            extract_all(packed, node.base)
        (node.base / "node").rename(node.data)
        _flags(node.data, flags)
        answer = diagnose(RabbitMQStore(node.data), SUITES[suite])
        assert answer.starts is starts, answer.evidence
        if starts:
            node.start()
            node.stop()
        else:
            with pytest.raises(AssertionError, match=r"disabled_required_feature_flag|failed_to_initialize_feature_flags_registry"):
                node.start()
