"""Which version wrote a RabbitMQ store: what the stores of real nodes show, with their metadata and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, opened, run_cli

import mqstore
from mqstore.rabbitmq.diagnosis import version_evidence

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


def test_the_feature_flags_of_a_data_directory_name_the_version(tmp_path: Path) -> None:
    (tmp_path / "msg_stores" / "vhosts").mkdir(parents=True)
    assert version_evidence(mqstore.open(tmp_path)) == (
        None,
        "no message is stored and no feature flag of 4.x is named: nothing shows the version",
    )
    (tmp_path / "feature_flags").write_text("[quorum_queue,'rabbitmq_4.0.0','rabbitmq_4.1.0'].\n")
    assert version_evidence(mqstore.open(tmp_path)) == ("4.1", "the file feature_flags names rabbitmq_4.1.0")
