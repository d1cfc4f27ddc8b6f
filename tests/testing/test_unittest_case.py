"""`RocketMQTestCase`, as a project uses it that runs `python -m unittest`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"


def run(place: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a test module with unittest, in a separate process that keeps its temporary files in `place`."""
    (place / "test_orders.py").write_text(code, encoding="utf-8")
    temporary = place / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "unittest", "-v", "test_orders"]
    environment = {**ENVIRONMENT, "TMPDIR": str(temporary)}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_tests_of_the_page_pass_and_leave_nothing(tmp_path: Path) -> None:
    page = (GUIDE / "pytest.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python unittest\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("scope", ["function", "class"])
def test_each_test_has_a_new_broker_unless_the_class_shares_one(tmp_path: Path, scope: str) -> None:
    done = run(
        tmp_path,
        f"""
from mqstore.testing import RocketMQTestCase

seen = []

class OrderTest(RocketMQTestCase):
    rocketmq_scope = {scope!r}

    def test_one(self):
        self.rocketmq.produce("orders", b"1", queue_id=0)
        seen.append(self.rocketmq)

    def test_two(self):
        self.assertEqual(self.rocketmq is seen[0], {scope == "class"})
        self.assertEqual(self.rocketmq.client.queues("orders"), {4 if scope == "class" else 0})

class OtherTest(OrderTest):
    def test_one(self):
        self.assertIsNot(self.rocketmq, seen[0])

    test_two = None
""",
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_test_that_fails_leaves_nothing_running_and_no_files(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import socket
from mqstore.testing import RocketMQTestCase

addresses = []

class OrderTest(RocketMQTestCase):
    def test_a_fails(self):
        addresses.append((self.rocketmq.host, self.rocketmq.port))
        self.fail("on purpose")

    def test_b_nothing_listens_there(self):
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(addresses[0])
""",
    )
    assert done.returncode == 1
    assert re.search(r"^test_a_fails .* FAIL$", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^test_b_nothing_listens_there .* ok$", done.stderr, re.MULTILINE), done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_it_needs_no_pytest_and_options_are_those_of_the_broker(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import sys
from mqstore.testing import RocketMQTestCase

class OrderTest(RocketMQTestCase):
    rocketmq_options = {"version": "5.3.3", "auto_create_topics": False}

    def test_it(self):
        self.assertEqual(self.rocketmq.broker.context.profile.version, "5.3.3")
        with self.assertRaisesRegex(Exception, "not exist"):
            self.rocketmq.produce("typo", "lost")
        self.assertFalse([name for name in sys.modules if name.startswith(("pytest", "_pytest"))])
""",
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_scope_is_an_error_that_names_the_two(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
from mqstore.testing import RocketMQTestCase

class OrderTest(RocketMQTestCase):
    rocketmq_scope = "session"

    def test_it(self):
        pass
""",
    )
    assert done.returncode == 1
    assert "rocketmq_scope is 'session'; it must be function or class" in done.stderr
