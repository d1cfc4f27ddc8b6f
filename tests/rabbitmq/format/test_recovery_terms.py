"""`recovery.dets` and `clean.dot` with values that no broker wrote: they count as absent."""

from __future__ import annotations

import pytest

from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.format.recovery_terms import (
    MAX_SEQ_ID,
    CleanDot,
    QueueTerms,
    queue_value,
    read_clean_dot,
    read_terms,
    write_clean_dot,
)

NAME: list[Term] = list(b"8GAFI66390KAQ1U33NFI8WMTF")
NOTED = QueueTerms({0: 2, 3: 1}, None, 7, 5, bytes(16), 2, 100)


def read(value: Term, key: Term = NAME) -> QueueTerms | None:
    return read_terms([(key, value)]).get(bytes(key).decode() if isinstance(key, list) else "")


@pytest.mark.parametrize("key", [[], "name", [*NAME, 32], [*NAME, 127], [*NAME, Atom("a")]])
def test_a_key_that_names_no_directory_is_skipped(key: Term) -> None:
    assert read_terms([(key, queue_value(NOTED)), (NAME, queue_value(NOTED))]) == {bytes(NAME).decode(): NOTED}


def test_a_value_that_is_no_list_is_skipped() -> None:
    assert read_terms([(NAME, Atom("undefined"))]) == {}


@pytest.mark.parametrize("segments", [Atom("none"), [3], [(0, 1, 2)], [(0,)], [(-1, 2)], [(0, MAX_SEQ_ID + 1)], [(0, 1), (1, Atom("x"))]])
def test_counts_that_are_no_pairs_of_numbers_are_absent(segments: Term) -> None:
    assert read([(Atom("segments"), segments), (Atom("next_seq_id"), 7)]) == QueueTerms(None, None, 7, None, None, None, None)


@pytest.mark.parametrize("state", [(2, [3]), (1, {0: 2}), (2, {0: 2}, 0), {0: 2}])
def test_a_state_of_version_2_in_another_form_is_absent(state: Term) -> None:
    assert read([(Atom("v2_index_state"), state)]) == QueueTerms(None, None, None, None, None, None, None)
    assert read([(Atom("v2_index_state"), (2, {0: 2}))]) == QueueTerms(None, {0: 2}, None, None, None, None, None)


def test_numbers_and_a_reference_in_another_form_are_absent() -> None:
    last = read([(Atom("next_seq_id"), MAX_SEQ_ID), (Atom("persistent_count"), 0), (Atom("persistent_ref"), bytes(15)), Atom("x"), (1, 2)])
    assert last == QueueTerms(None, None, MAX_SEQ_ID, None, None, 0, None)
    assert read([(Atom("next_seq_id"), -1), (Atom("persistent_bytes"), 1.5)]) == QueueTerms(None, None, None, None, None, None, None)


def test_the_deliveries_of_the_newest_version_count() -> None:
    both: list[Term] = [(Atom("next_deliver_seq_id"), 3), (Atom("redeliver_seq_id"), 4)]
    terms = [read(both), read([*both, (Atom("delivery_count"), {5: 1})]), read(both[1:]), read([both[0], (Atom("delivery_count"), {5: 1})])]
    assert [each and (each.next_deliver, each.redeliver, each.delivery_counts) for each in terms] == [
        (3, 4, None),
        (4, 4, {5: 1}),
        (4, 4, None),
        (None, None, {5: 1}),
    ]


@pytest.mark.parametrize("module", [None, "rabbit_msg_store_ets_index"])
def test_clean_dot_is_read_as_written(module: str | None) -> None:
    references = [b"b" * 16, b"a" * 16]
    assert read_clean_dot(write_clean_dot(references, module)) == CleanDot(frozenset(references), module)


@pytest.mark.parametrize(
    "content", [b"", b"{client_refs, none}.", b"{client_refs, [1]}.", b'{"client_refs", []}.', b"{client_refs, [], 1}."]
)
def test_clean_dot_without_a_list_of_references_says_so(content: bytes) -> None:
    assert read_clean_dot(content) == "it does not list client_refs"


def test_clean_dot_that_is_no_text_of_erlang_says_so() -> None:
    assert str(read_clean_dot(b"{client_refs, ")).startswith("it is not a sequence of Erlang terms: ")
    assert read_clean_dot(b"{client_refs, []}. {index_module, 3}.") == CleanDot(frozenset(), None)
