"""The table of versions."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mqstore.errors import UsageError
from mqstore.rocketmq.format.profile import RELEASES, VERSIONS, VersionRules, profile, version_rules

SRC = Path(__file__).parents[3] / "src" / "mqstore"


def test_every_release_has_the_rules_of_its_row() -> None:
    found = {version: profile(version) for version in RELEASES}
    assert {version for version, each in found.items() if each.rules == "4.9.3"} == {version for version in RELEASES if version[0] == "4"}
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


def test_the_two_rules_differ_in_each_behaviour() -> None:
    old, new = (version_rules(version) for version in VERSIONS)
    assert (old.version, new.version) == ("4.9.3", "5.3.3")
    assert [each.name for each in fields(VersionRules) if getattr(old, each.name) == getattr(new, each.name)] == []
    assert {version_rules(version).version for version in RELEASES} == set(VERSIONS)


def test_each_behaviour_is_asked_for() -> None:
    asked = "\n".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py") if path.name != "profile.py")
    assert [each.name for each in fields(VersionRules) if f".{each.name}" not in asked] == []


def test_no_other_module_compares_versions() -> None:
    compared = re.compile(r"""(?:[!=]=|<=?|>=?|\bin \(|startswith\()\s*["'][45]\.|\bis_v5\b""")
    for path in (path for ending in ("py", "pyi", "pxd") for path in SRC.rglob(f"*.{ending}")):
        if path.name != "profile.py" and "rabbitmq" not in path.parts:
            code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            assert not compared.search(code), path


def test_a_release_that_there_was_not_is_refused_with_the_list_of_all() -> None:
    with pytest.raises(UsageError, match=r"there are no rules of version '4.99'; known are 4\."):
        profile("4.99")
