"""Messages in the state of a machine, in the forms of each version, and terms that are none."""

from __future__ import annotations

import pytest

from mqstore.rabbitmq.erlang.terms import Atom, ImproperList, Term
from mqstore.rabbitmq.quorum import machine_state
from mqstore.rabbitmq.quorum.machine_state import BadStateError, read_message

PACKED = 5 << 44 | 7  # 5 bytes, index 7


@pytest.mark.parametrize("term", [PACKED, ImproperList((7,), 5), ImproperList((7, 5), {})])
def test_a_message_is_a_number_or_its_index_before_its_header(term: Term) -> None:
    message = read_message(term)
    assert (message.index, message.size) == (7, 5)


@pytest.mark.parametrize("term", [Atom("empty"), (7, 5), [7, 5], ImproperList((Atom("x"),), 5)])
def test_another_term_is_no_message(term: Term) -> None:
    with pytest.raises(BadStateError, match="a message is"):
        read_message(term)


@pytest.mark.parametrize("term", [ImproperList((Atom("expired"),), PACKED), ImproperList((Atom("expired"), 7), 5)])
def test_a_dead_letter_is_its_reason_before_the_message(term: Term) -> None:
    reason, message = machine_state._dead_letter(term)
    assert (reason, message.index, message.size) == ("expired", 7, 5)


@pytest.mark.parametrize("term", [PACKED, ImproperList((7,), 5), [Atom("expired"), PACKED]])
def test_a_term_without_a_reason_is_no_dead_letter(term: Term) -> None:
    with pytest.raises(BadStateError, match="a dead letter is"):
        machine_state._dead_letter(term)
