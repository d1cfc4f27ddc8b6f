"""An installation without a C compiler: it succeeds, the package works slowly, and says so once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import case_named, opened

import mqstore
from mqstore.kernels import is_compiled

PACKAGE = Path(mqstore.__file__).parent
ROOT = PACKAGE.parent.parent
WARNING = "mqstore was installed without a C compiler and runs some hundred times slower"


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as an installation without a compiler leaves it."""
    place = tmp_path_factory.mktemp("uncompiled")
    shutil.copytree(PACKAGE, place / "mqstore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return place


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(place)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=place
    )


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the package is not run from its sources")
@pytest.mark.skipif(not is_compiled(), reason="the kernels of this installation are not compiled")
def test_the_package_builds_where_there_is_no_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    environment = os.environ | {"CC": "/nonexistent/cc"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'building extension "mqstore.kernels.common.shared_code" failed' in done.stderr
    assert not [*tmp_path.rglob("*.so")]


def test_an_uncompiled_package_reads_a_store_and_warns_once(uncompiled: Path) -> None:
    store = str(opened(case_named("4.9.3/a-clean-small")))
    script = (
        "import sys, mqstore; from mqstore.rocketmq.verify.verification import verify; "
        "print(*(verify(mqstore.open(sys.argv[1])).ok for _ in range(2)), mqstore.__file__)"
    )
    done = run(uncompiled, "-c", script, store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", str(uncompiled / "mqstore" / "__init__.py")]
    assert done.stderr.count(WARNING) == 1


def test_a_command_of_an_uncompiled_package_prints_the_warning_as_a_sentence(uncompiled: Path) -> None:
    done = run(uncompiled, "-m", "mqstore", "inspect", str(opened(case_named("3.10.8/f-mixed-features"))))
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith(f"mqstore: warning: {WARNING}")] == []


@pytest.mark.long
@pytest.mark.parametrize(("family", "numbers"), [("rocketmq", [30220, 30936, *range(40)]), ("rabbitmq", [*range(8)])])
def test_an_uncompiled_package_reports_damage_as_a_compiled_one_does(
    uncompiled: Path, family: str, numbers: list[int], tmp_path: Path
) -> None:
    """Images 30220 and 30936 made `inspect` and `verify` end with "Object of type int64 is not JSON serializable"."""
    script = (
        f"import sys, warnings; sys.path.append({str(ROOT / 'tests')!r}); warnings.simplefilter('ignore'); "
        "from pathlib import Path; from fuzz.images import Images; "
        "images = Images(sys.argv[1], Path(sys.argv[2])); "
        "print(sum(images.check(images.image(int(number))) is None for number in sys.argv[3:]))"
    )
    done = run(uncompiled, "-c", script, family, str(tmp_path), *map(str, numbers))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == str(len(numbers))
