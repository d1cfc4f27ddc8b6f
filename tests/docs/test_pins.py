"""What the package names in pyproject.toml, requirements.lock pins."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {"dependencies": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in found}


@pytest.mark.parametrize("group", GROUPS)
def test_every_package_of_a_group_has_a_pin_that_suits_it(group: str) -> None:
    pinned = pins()
    missing = []
    for wanted in map(Requirement, GROUPS[group]):
        pin = pinned.get(canonicalize_name(wanted.name))
        if pin is None or not wanted.specifier.contains(pin):
            missing.append(f"{wanted}: {pin}")
    assert not missing


def test_what_users_can_add_is_there_for_the_tests() -> None:
    """Tests import what the extras bring; so the group of the tests has it, under the same condition."""
    told = {Requirement(line).name: str(Requirement(line).specifier) for line in GROUPS["dev"]}
    for group in ("console", "uvloop", "amqp", "delta"):
        for each in map(Requirement, GROUPS[group]):
            assert told.get(each.name) == str(each.specifier)
