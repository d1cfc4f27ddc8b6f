"""An installation has compiled kernels: the build brings a compiler or ends with a sentence, and an import without them says what to do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import case_named, opened

import mqstore

PACKAGE = Path(mqstore.__file__).parent
ROOT = PACKAGE.parent.parent

from_sources = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the package is not run from its sources")


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which no C compiler is found."""
    (tmp_path / "empty").mkdir()
    return {"PATH": str(tmp_path / "empty"), "CC": ""}


def build(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Compile the kernels into a directory."""
    arguments = ["build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    return run("setup.py", *arguments, cwd=ROOT, **environment)


@from_sources
def test_a_machine_without_a_compiler_is_given_one(no_compiler: dict[str, str]) -> None:
    asked = "import build_backend; print(build_backend.compiler_packages(), build_backend.c_compiler())"
    assert run("-c", asked, cwd=ROOT, **no_compiler).stdout == "['ziglang'] None\n"
    assert run("-c", asked, cwd=ROOT, **no_compiler | {"CC": f"{sys.executable} -O"}).stdout == f"[] {sys.executable} -O\n"


@from_sources
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="this environment has a compiler of its own")
def test_a_build_without_a_compiler_ends_with_a_sentence(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    done = build(tmp_path, **no_compiler)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("mqstore was not built: install a C compiler and the headers of this Python")
    assert done.stderr.endswith("there is no C compiler here\n")
    assert "Traceback" not in done.stderr


@from_sources
@pytest.mark.long
def test_a_build_whose_compiler_fails_ends_with_a_sentence(tmp_path: Path) -> None:
    done = build(tmp_path, CC="false")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("mqstore was not built: install a C compiler and the headers of this Python")
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.rglob("*.so")]


def test_without_its_kernels_the_package_says_so_when_it_is_imported(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "mqstore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = run("-c", "import mqstore", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: mqstore has no compiled kernels for this Python (.cpython-")
    assert "pip install --force-reinstall --no-deps mqstore" in done.stderr


def test_kernels_need_no_cython_when_they_run(tmp_path: Path) -> None:
    for name in ("cython", "Cython"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is imported')\n", encoding="utf-8")
    script = (
        "import pkgutil, sys; from importlib import import_module; import mqstore.kernels as kernels; "
        "names = [each.name for each in pkgutil.walk_packages(kernels.__path__, 'mqstore.kernels.')]; "
        "modules = [import_module(name) for name in names]; "
        "from mqstore.rocketmq.verify.verification import verify; "
        "print(len(names) > 25, verify(mqstore.open(sys.argv[1])).ok, 'cython' in sys.modules)"
    )
    store = str(opened(case_named("4.9.3/a-clean-small")))
    done = run("-c", f"import mqstore; {script}", store, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(PACKAGE.parent)]))
    assert done.stdout == "True True False\n", done.stderr
