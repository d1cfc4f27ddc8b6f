"""The public face of `mqstore.pipeline`: what guides import, and nothing else."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from mqstore import pipeline

PACKAGES = ("queries", "source", "spark", "tail")


@pytest.mark.parametrize("name", pipeline.__all__)
def test_every_public_name_is_a_function_or_a_class(name: str) -> None:
    assert inspect.isfunction(getattr(pipeline, name)) or inspect.isclass(getattr(pipeline, name))


def test_dir_lists_the_public_names_only() -> None:
    assert dir(pipeline) == sorted(pipeline.__all__)


def test_no_package_shadows_a_public_name() -> None:
    inside = {module.name for module in pkgutil.iter_modules(pipeline.__path__)}
    assert inside == set(PACKAGES)
    for package in PACKAGES:
        importlib.import_module(f"mqstore.pipeline.{package}")
    importlib.import_module("mqstore.pipeline.tail.follow")
    assert inspect.isfunction(pipeline.follow)


def test_importing_the_package_needs_no_spark() -> None:
    code = "import sys, mqstore.pipeline; assert dir(mqstore.pipeline); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pipeline.nothing  # noqa: B018
