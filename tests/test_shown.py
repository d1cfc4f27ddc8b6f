"""What a prompt and a notebook show of stores, views, queues and reports."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.golden import case_named, opened, unpack

import mqstore
from mqstore.rocketmq.verify.verification import verify
from mqstore.shown import Shown


def test_a_rocketmq_store_its_views_queues_and_reports_show_themselves_in_a_line() -> None:
    root = opened(case_named("4.9.3/a-clean-small"))
    store = mqstore.open(root)
    where = f"RocketMQ store '{root}'"
    assert repr(store) == f"<{where}: files of RocketMQ 4.x, log 576.0 KiB in 9 files, queues 20 of 8 topics, shutdown clean>"
    assert repr(store.view()) == f"<disk view of {where}: queues 20 of 8 topics, messages 511>"
    assert repr(store.view("recovered")).startswith(f"<recovered view of {where}: ")
    assert repr(store.view().queue("orders", 0)) == "<queue 0 of topic 'orders': offsets 0 to 28>"
    report = verify(store)
    assert repr(report) == f"<report on '{root}': verdict {report.headline}, checked 511 messages in {report.checked.files} files>"


def test_a_rabbitmq_store_its_queues_and_reports_show_themselves_in_a_line() -> None:
    root = opened(case_named("3.10.8/f-mixed-features"))
    store = mqstore.open(root)
    assert repr(store) == f"<RabbitMQ message store '{root}': vhosts '/', 'тест-β/%2F 2', queues 8>"
    assert repr(store.queues[0]).startswith(f"<queue {store.queues[0].name!r} of vhost '/'")
    assert repr(store.verify()).startswith(f"<report on '{root}': verdict ")


def test_completion_offers_public_names_only() -> None:
    for case, name in (("4.9.3/a-clean-small", "view"), ("3.10.8/f-mixed-features", "queues")):
        store = mqstore.open(opened(case_named(case)))
        for shown in (store, store.messages(), store.verify()):
            assert not [each for each in dir(shown) if each.startswith("_")]
        assert {"messages", "to_arrow", "sql", "verify", "path", name} <= set(dir(store))


def test_a_notebook_gets_a_table_in_which_names_of_the_store_are_text() -> None:
    class Named(Shown):
        def _title(self) -> str:
            return "queue '<b>'"

        def _facts(self) -> list[tuple[str, object]]:
            return [("offsets", "0 & 1")]

    shown = Named()._repr_html_()
    assert "queue &#x27;&lt;b&gt;&#x27;" in shown
    assert ">0 &amp; 1</td>" in shown


def test_a_store_that_was_removed_meanwhile_still_has_a_name(tmp_path: Path) -> None:
    store = mqstore.open(unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store"))
    shutil.rmtree(tmp_path / "store")
    assert repr(store) == f"<RocketMQ store '{tmp_path / 'store'}'>"
