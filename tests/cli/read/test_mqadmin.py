"""mqadmin's commands take the option that names a name server, and ignore it with a note."""

from __future__ import annotations

import pytest
from support.golden import case_named, opened, run_cli

STORE = opened(case_named("4.9.3/b-kill9"))
SERVER = "127.0.0.1:9876"
COMMANDS = (
    ("queryMsgByKey", "-t", "TopicTest", "-k", "K1"),
    ("topicList",),
    ("topicStatus", "-t", "TopicTest"),
    ("consumerProgress",),
    ("queryCq", "-t", "TopicTest", "-q", "0", "-i", "1"),
    ("printMsg", "-t", "late", "-d", "false"),
    ("queryMsgByOffset", "-t", "TopicTest", "-i", "0", "-o", "1"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_name_server_is_accepted_and_ignored_with_a_note(command: tuple[str, ...]) -> None:
    name, *options = command
    plain, given = run_cli(name, STORE, *options), run_cli(name, STORE, *options, "-n", SERVER)
    assert (given.status, given.stdout) == (plain.status, plain.stdout)
    assert f"-n {SERVER} is ignored" in given.stderr
    assert run_cli(name, STORE, *options, "--namesrvAddr", SERVER, "-q" if name != "queryCq" else "--quiet").stderr == ""
