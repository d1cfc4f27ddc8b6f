"""Every block of code in README.md and on the pages of the guide is run by a test, as it stands, or shows the output of one that is.

Cells of notebooks (`support/notebook.py`) and transcripts of commands (`support/transcripts.py`) are recognised by their pages and run
here or in `test_docs.py`. For the others `RUN_BY` names the test. A block that nothing runs fails.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from support import notebook, snippets, transcripts

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {page.name for page in notebook.PAGES}
TRANSCRIPTS = {page.name for page in transcripts.PAGES}

SERVING = "tests/docs/test_broker_pages.py::test_what_a_page_shows_running_says_so"
SHOWN_TESTS = "tests/docs/test_broker_pages.py::test_the_tests_that_the_pages_show_pass"
CLUSTER = "tests/pipeline/spark/test_cluster.py::test_the_commands_and_the_session_of_the_guide_give_on_the_cluster_what_threads_give"
YARN = "tests/interop/test_hadoop.py::test_the_commands_of_the_guide_read_from_hdfs_on_yarn"
CONNECT = "tests/pipeline/spark/test_connect.py::test_the_program_of_the_guide_prints_what_threads_find"
BROKER = "tests/docs/test_broker_pages.py::test_the_commands_of_the_broker_page_serve_and_tell_metrics"
ACCESS = "tests/docs/test_who_may_connect.py::test_the_examples_of_the_page_are_true"
BY_URL = "tests/pipeline/source/test_urls.py::test_the_guide_is_right"

# (page, kind): the test that runs all such blocks of the page
RUN_BY = {
    ("README.md", "doctest"): "tests/docs/test_docs.py::test_the_example_of_the_first_page_is_true",
    ("README.md", "python"): SHOWN_TESTS,
    ("README.md", "serving"): SERVING,
    ("broker.md", "doctest"): "tests/docs/test_broker_pages.py::test_the_examples_of_the_broker_page_are_true",
    ("broker.md", "java"): "tests/docs/test_broker_pages.py::test_the_program_in_java_reads_the_address_and_ends_the_broker",
    ("broker.md", "json ready"): "tests/docs/test_broker_pages.py::test_the_ready_line_has_the_fields_that_the_page_shows",
    ("broker.md", "sh container"): "tests/docs/test_containerfile.py::test_the_command_of_the_image_serves_clients",
    ("broker.md", "sh ready"): "tests/docs/test_broker_pages.py::test_the_shell_lines_wait_for_the_broker_and_end_it",
    ("broker.md", "sh serve"): BROKER,
    ("cluster.md", "properties"): CLUSTER,
    ("cluster.md", "properties yarn"): YARN,
    ("cluster.md", "python"): CLUSTER,
    ("cluster.md", "sh cluster"): CLUSTER,
    ("cluster.md", "sh jobs"): CLUSTER,
    ("cluster.md", "sh yarn"): YARN,
    ("commands.md", "serving"): SERVING,
    ("connect.md", "python"): CONNECT,
    ("connect.md", "sh jobs"): "tests/pipeline/spark/test_connect.py::test_the_commands_of_the_guide_work",
    ("connect.md", "sh server"): CONNECT,
    ("console.md", "doctest"): "tests/console/test_guide.py::test_the_example_of_the_guide_is_true",
    ("console.md", "serving"): SERVING,
    ("embed-queues.md", "doctest"): "tests/docs/test_docs.py::test_the_examples_of_the_page_on_embedded_queues_are_true",
    ("embed.md", "doctest"): "tests/docs/test_docs.py::test_the_examples_of_the_embedding_page_are_true",
    ("pytest.md", "python"): SHOWN_TESTS,
    ("pytest.md", "python unittest"): "tests/testing/test_unittest_case.py::test_the_tests_of_the_page_pass_and_leave_nothing",
    ("rabbitmq.md", "text check"): "tests/interop/rabbitmq/test_rescue_into_new_node.py::"
    "test_a_new_node_has_every_message_of_older_ones_and_works_on_with_them",
    ("replay.md", "json rows"): "tests/replay/test_rows.py::test_the_rows_of_the_guide_are_messages",
    ("spark.md", "python s3"): BY_URL,
    ("spark.md", "sh s3"): BY_URL,
    ("who-may-connect.md", "doctest"): ACCESS,
    ("who-may-connect.md", "properties"): "tests/interop/test_access.py::"
    "test_clients_with_tls_and_keys_are_served_and_those_without_tls_are_turned_away",
    ("who-may-connect.md", "serving"): SERVING,
    ("who-may-connect.md", "sh certificates"): "tests/docs/test_who_may_connect.py::"
    "test_a_broker_and_a_client_accept_the_certificates_of_the_page",
    ("who-may-connect.md", "yaml accounts"): ACCESS,
    ("who-may-connect.md", "yaml revoked"): "tests/docs/test_who_may_connect.py::"
    "test_the_file_of_the_page_that_says_that_it_is_complete_revokes_an_administrator",
}


def _run(block: snippets.Block, before: snippets.Block | None) -> bool:
    """Return whether something runs a block, or makes the output that it shows. before: the block before it on the page."""
    if block.kind.split()[0] == "console":
        return block.page in TRANSCRIPTS
    if block.page in NOTEBOOKS and (block.kind in notebook.CELLS or (block.kind == "text" and _is_cell(before))):
        return True
    return (block.page, block.kind) in RUN_BY


def _is_cell(block: snippets.Block | None) -> bool:
    return block is not None and block.kind in notebook.CELLS


@pytest.mark.parametrize("page", snippets.PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_is_run(page: Path) -> None:
    found = snippets.blocks(page)
    assert [str(block) for block, before in zip(found, [None, *found], strict=False) if not _run(block, before)] == []


def test_a_notebook_has_every_cell_of_its_page() -> None:
    """What is listed as run is run: the two readers of a page see the same cells, and the same outputs."""
    for page in notebook.PAGES:
        cells = [(cell["code"], cell["told"]) for cell in notebook.cells(page)]
        found = snippets.blocks(page)
        own = [block.text for block in found if block.kind in notebook.CELLS]
        shown = [block.text for block in found if block.kind == "text"]
        assert [code for code, _ in cells] == own, page.name
        assert [told for _, told in cells if told is not None] == shown, page.name


def test_a_transcript_has_every_console_block_of_its_page() -> None:
    for page in transcripts.PAGES:
        found = [block.text for block in snippets.blocks(page) if block.kind.split()[0] == "console"]
        assert [text for text, _ in transcripts.blocks(page)] == found, page.name


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def _source(file: str) -> str:
    """Return the source of a test file, with that of the helpers that it imports from `support`."""
    text = (ROOT / file).read_text(encoding="utf-8")
    helpers = re.findall(r"^from support\.(\w+) import", text, re.MULTILINE)
    return "".join([text, *((ROOT / "tests" / "support" / f"{name}.py").read_text(encoding="utf-8") for name in helpers)])


@pytest.mark.parametrize(("page", "kind"), RUN_BY, ids=lambda word: word.replace(" ", "-"))
def test_the_test_that_runs_a_block_exists_and_reads_it_from_the_page(page: str, kind: str) -> None:
    file, _, name = RUN_BY[page, kind].partition("::")
    assert name in _functions(file)
    assert any(block.kind == kind for path in snippets.PAGES if path.name == page for block in snippets.blocks(path))
    source = _source(file)
    assert page in source or 'GUIDE.glob("*.md")' in source
    assert kind == "doctest" or kind in source or kind.split(maxsplit=1)[0] in source
