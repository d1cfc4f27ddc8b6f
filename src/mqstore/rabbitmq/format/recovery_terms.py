r"""The records of a clean stop: each queue in `recovery.dets`, the message store in `clean.dot`.

The key is the name of the queue's directory, the value a list of pairs:

    segments             version 1: [{segment, unacknowledged}, …]
    v2_index_state       version 2: {2, #{segment => unacknowledged}}
    next_seq_id          3.10 and newer: the sequence id of the next message
    next_deliver_seq_id  3.10 to 4.0: all below have been delivered
    redeliver_seq_id     4.3: the same, and
    delivery_count       4.3: #{sequence id => deliveries} of single messages that were delivered as well
    persistent_ref       the queue's reference in clean.dot, 16 bytes
    persistent_count, persistent_bytes    its persistent messages

    >>> noted = QueueTerms({0: 2}, None, 7, 5, bytes(16), 2, 100)
    >>> read_terms(dets.read_objects(write_terms({"8GAFI66390KAQ1U33NFI8WMTF": noted}))) == {"8GAFI66390KAQ1U33NFI8WMTF": noted}
    True

Format: docs/formats/rabbitmq.md, sections 8.1, 8.3 and 15.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, ErlangTextError, Term, read_text, write_text

MAX_SEQ_ID = (1 << 62) - 1
REFERENCE = 16
CLEAN_FILES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")  # of a message store that was closed in order


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """The terms of one queue; None if a term is absent.

    segments, v2_segments: unacknowledged messages by segment, in version 1 and 2. next_deliver: messages below it are redelivered.
    delivery_counts: deliveries of single messages by sequence id, which are redelivered too; redeliver: next_deliver as 4.3 records it.
    """

    segments: Mapping[int, int] | None
    v2_segments: Mapping[int, int] | None
    next_seq: int | None
    next_deliver: int | None
    reference: bytes | None
    count: int | None
    size: int | None
    delivery_counts: Mapping[int, int] | None = None
    redeliver: int | None = None


@dataclass(frozen=True, slots=True)
class CleanDot:
    """The references of the queues that were stopped cleanly. index_module: None since 4.0."""

    references: frozenset[bytes]
    index_module: str | None


def read_terms(objects: Iterable[tuple[Term, Term]]) -> dict[str, QueueTerms]:
    """Return the terms by queue directory. Invalid keys are skipped, and invalid values count as absent."""
    terms = {}
    for key, value in objects:
        name = _directory_name(key)
        if name is None or not isinstance(value, list):
            continue
        values = {str(pair[0]): pair[1] for pair in value if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Atom)}
        reference = values.get("persistent_ref")
        state = values.get("v2_index_state")
        terms[name] = QueueTerms(
            _counts(values["segments"]) if "segments" in values else None,
            _counts(state[1]) if isinstance(state, tuple) and len(state) == 2 and state[0] == 2 else None,
            _sequence_number(values.get("next_seq_id")),
            _sequence_number(_next_deliver(values)),
            reference if isinstance(reference, bytes) and len(reference) == REFERENCE else None,
            _sequence_number(values.get("persistent_count")),
            _sequence_number(values.get("persistent_bytes")),
            _counts(values["delivery_count"]) if isinstance(values.get("delivery_count"), dict) else None,
            _sequence_number(values.get("redeliver_seq_id")),
        )
    return terms


def _next_deliver(values: Mapping[str, Term]) -> Term:
    """Return the term that counts if a converter wrote those of several versions: that of the newest."""
    newest = "redeliver_seq_id" if isinstance(values.get("delivery_count"), dict) else "next_deliver_seq_id"
    return values.get(newest, values.get("redeliver_seq_id"))


def _directory_name(key: Term) -> str | None:
    if isinstance(key, list) and key and all(isinstance(octet, int) and 32 < octet < 127 for octet in key):
        return bytes(key).decode("ascii")
    return None


def _sequence_number(term: Term) -> int | None:
    return term if isinstance(term, int) and 0 <= term <= MAX_SEQ_ID else None


def _counts(term: Term) -> dict[int, int] | None:
    pairs = list(term.items()) if isinstance(term, dict) else term
    if not isinstance(pairs, list):
        return None
    counts = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return None
        segment, count = _sequence_number(pair[0]), _sequence_number(pair[1])
        if segment is None or count is None:
            return None
        counts[segment] = count
    return counts


def queue_value(terms: QueueTerms) -> list[Term]:
    """Return the value of one queue, with its terms in the order of 3.10; those of 4.3 follow where they are known."""
    index: Term
    if terms.v2_segments is not None:
        index = (Atom("v2_index_state"), (2, dict(sorted(terms.v2_segments.items()))))
    else:
        index = (Atom("segments"), sorted((terms.segments or {}).items()))
    rest = {
        "next_seq_id": terms.next_seq,
        "next_deliver_seq_id": terms.next_deliver,
        "persistent_ref": terms.reference,
        "persistent_count": terms.count,
        "persistent_bytes": terms.size,
        "redeliver_seq_id": terms.redeliver,
        "delivery_count": None if terms.delivery_counts is None else dict(sorted(terms.delivery_counts.items())),
    }
    return [index, *((Atom(name), value) for name, value in rest.items() if value is not None)]


def write_terms(terms: Mapping[str, QueueTerms]) -> bytes:
    """Return the bytes of a `recovery.dets` that a broker opens.

    A directory that no broker named has no terms there: a broker's own names are digests.
    """
    return dets.write_objects((list(name.encode("ascii")), queue_value(value)) for name, value in sorted(terms.items()) if name.isascii())


def read_clean_dot(content: bytes) -> CleanDot | str:
    """Return the contents of `clean.dot`, or why they are invalid."""
    try:
        terms = read_text(content)
    except ErlangTextError as error:
        return f"it is not a sequence of Erlang terms: {error}"
    values = {str(term[0]): term[1] for term in terms if isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Atom)}
    references, module = values.get("client_refs"), values.get("index_module")
    if not isinstance(references, list) or not all(isinstance(reference, bytes) for reference in references):
        return "it does not list client_refs"
    return CleanDot(frozenset(references), str(module) if isinstance(module, Atom) else None)


def write_clean_dot(references: Iterable[bytes], index_module: str | None = "rabbit_msg_store_ets_index") -> bytes:
    """Return the bytes of `clean.dot`. index_module: None for 4.x."""
    terms: list[Term] = [(Atom("client_refs"), sorted(references))]
    if index_module is not None:
        terms.append((Atom("index_module"), Atom(index_module)))
    return write_text(terms)
