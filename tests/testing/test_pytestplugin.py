"""The fixture `rocketmq`, as a project that has mqstore installed would use it."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

PLUGIN = ("-p", "mqstore.pytestplugin", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester, code: str, *arguments: str) -> pytest.RunResult:
    """Run a test module in a separate process."""
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess(*PLUGIN, *arguments)


def test_three_lines_are_a_whole_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_what_is_produced_is_consumed(rocketmq):
            rocketmq.produce("orders", "paid", keys="o-17", tags="eu", properties={"shop": "12"})
            [message] = rocketmq.consume("orders")
            assert (message.text, message.keys, message.tags, message.properties["shop"]) == ("paid", "o-17", "eu", "12")
        """,
    )
    result.assert_outcomes(passed=1)


def test_each_test_has_a_broker_of_its_own_unless_a_scope_says_otherwise(pytester: pytest.Pytester) -> None:
    code = """
        seen = []

        def test_one(rocketmq):
            rocketmq.produce("orders", b"1")
            seen.append(rocketmq)

        def test_two(rocketmq):
            assert rocketmq.client.queues("orders") == QUEUES
            assert (rocketmq is seen[0]) == SHARED
        """
    run(pytester, code.replace("QUEUES", "0").replace("SHARED", "False")).assert_outcomes(passed=2)
    pytester.makeini("[pytest]\nrocketmq_scope = session")
    run(pytester, code.replace("QUEUES", "4").replace("SHARED", "True")).assert_outcomes(passed=2)


def test_an_invalid_scope_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrocketmq_scope = forever")
    result = run(pytester, "def test_one(rocketmq): pass")
    assert result.ret != 0
    assert (
        "rocketmq_scope is 'forever'; it must be one of function, class, module, package, session"
        in result.stdout.str() + result.stderr.str()
    )


def test_the_store_is_closed_cleanly_when_a_test_fails(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os
        from mqstore.rocketmq import MessageStore
        path = []

        def test_it_fails(rocketmq):
            rocketmq.produce("orders", b"kept")
            path.append(rocketmq.path)
            assert False

        def test_its_store_is_intact():
            assert not os.path.exists(path[0] / "abort")
            with MessageStore.open(path[0]) as store:
                assert sum(store.max_offset("orders", queue) for queue in range(4)) == 1
        """,
    )
    result.assert_outcomes(passed=1, failed=1)


def test_the_version_that_clients_see_is_a_setting(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrocketmq_version = 5.3.3")
    result = run(
        pytester,
        """
        def test_it_is_five(rocketmq):
            assert rocketmq.broker.context.profile.version == "5.3.3"
            assert rocketmq.client.request(106).version == 479
        """,
    )
    result.assert_outcomes(passed=1)


def test_runs_that_do_not_use_it_import_nothing_of_a_broker(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys

        def test_nothing_is_there():
            assert not [name for name in sys.modules if name.startswith(("mqstore.broker", "mqstore.rocketmq", "numpy"))]
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_restart_keeps_messages_offsets_and_address(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from mqstore.testing.client import ClientError

        def test_it_goes_on(rocketmq):
            address = rocketmq.address
            for number in range(6):
                rocketmq.produce("orders", str(number), queue_id=0)
            assert [message.text for message in rocketmq.consume("orders", 4, group="g")] == ["0", "1", "2", "3"]
            rocketmq.restart()
            assert rocketmq.address == address
            assert [message.text for message in rocketmq.consume("orders", 2, group="g")] == ["4", "5"]
            with pytest.raises(ClientError, match="0 of 1 messages of orders arrived within 0.1 s"):
                rocketmq.consume("orders", group="g", timeout=0.1)
        """,
    )
    result.assert_outcomes(passed=1)
