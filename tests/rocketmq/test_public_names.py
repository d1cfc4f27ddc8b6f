"""The public names of `mqstore.rocketmq`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mqstore.rocketmq


def test_dir_shows_the_public_names_only() -> None:
    assert dir(mqstore.rocketmq) == sorted(mqstore.rocketmq.__all__)


@pytest.mark.parametrize("name", mqstore.rocketmq.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(mqstore.rocketmq, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Broker'"):
        _ = mqstore.rocketmq.Broker


def test_importing_the_package_imports_no_module_of_it() -> None:
    code = "import sys, mqstore.rocketmq; print([name for name in sys.modules if name.startswith('mqstore.rocketmq.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
