"""The table of versions."""

from __future__ import annotations

import pytest

from mqstore.errors import UsageError
from mqstore.rocketmq.format.profile import RELEASES, profile


def test_every_release_has_the_rules_of_its_row() -> None:
    found = {version: profile(version) for version in RELEASES}
    assert {version for version, each in found.items() if not each.is_v5} == {version for version in RELEASES if version[0] == "4"}
    assert [version for version, each in found.items() if each.indexes_tags] == ["5.4.0", "5.5.0"]
    assert [version for version, each in found.items() if each.checkpoint_fields == 6] == ["5.5.0"]
    without = {version for version, each in found.items() if not each.ends_properties}
    assert without == {version for version in RELEASES if "4.9.1" <= version < "5.2"}
    assert not {"4.3.0", "4.7.1", "5.3.4", "5.4.0", "5.5.0"} & {version for version, each in found.items() if each.shares_properties}
    assert {"4.8.0", "4.9.3", "5.1.4", "5.3.3"} <= {version for version, each in found.items() if each.shares_properties}
    assert [version for version, each in found.items() if each.recovered_files == 10] == ["5.4.0", "5.5.0"]


@pytest.mark.parametrize("version", ["4.2.0", "4.10.0", "5.5.1", "6.0.0", "5", "latest", "", "4.9.3 ", "５.3.3"])
def test_another_version_is_refused_in_a_sentence_that_lists_them_all(version: str) -> None:
    with pytest.raises(UsageError) as error:
        profile(version)
    assert "\n" not in str(error.value)
    assert all(f" {release}" in str(error.value) for release in RELEASES)
