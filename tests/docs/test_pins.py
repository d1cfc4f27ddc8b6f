"""What the package names in pyproject.toml, requirements.lock pins."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {"dependencies": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def pins() -> dict[str, str]:
    lines = [line.partition(" \\")[0] for line in LOCK.splitlines() if line and line[0] not in "# "]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in found}


def test_every_pin_has_the_hashes_of_its_files_and_names_no_index() -> None:
    blocks = re.split(r"\n(?=\w)", LOCK)[1:]
    assert [block.split()[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}(\s|$)", block)] == []
    assert len(blocks) >= len(pins())
    assert "://" not in LOCK


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """As `scripts/demo` asks for packages: what is checked is the file, not only its version."""
    project, wheels = tmp_path / "project", tmp_path / "wheels"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "plain"\nversion = "1"\n[tool.setuptools]\npy-modules = []\n')
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-build-isolation", "-w", wheels, project], check=True)
    (made,) = wheels.iterdir()
    outcomes = []
    for digest in (hashlib.sha256(made.read_bytes()).hexdigest(), "0" * 64):
        (tmp_path / "lock").write_text(f"plain==1 \\\n    --hash=sha256:{digest}\n")
        asked = [
            "install",
            "-q",
            "--no-index",
            "--find-links",
            wheels,
            "--target",
            tmp_path / digest,
            "--constraint",
            tmp_path / "lock",
            "plain",
        ]
        outcomes.append(subprocess.run([*pip, *asked], capture_output=True, text=True, check=False))
    right, wrong = outcomes
    assert right.returncode == 0, right.stderr
    assert wrong.returncode != 0
    assert "DO NOT MATCH THE HASHES" in wrong.stderr


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
