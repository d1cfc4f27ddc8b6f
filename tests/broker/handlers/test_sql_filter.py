"""SQL92 expressions: true, false and unknown results, and invalid expressions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.broker.handlers.sql_filter import compile_expression
from mqstore.errors import UsageError

pytestmark = pytest.mark.versions

MESSAGE = {"n": "4", "f": "4.5", "text": "it's", "yes": "true", "region": "us", "word": "four", "big": "3000000000"}


@pytest.mark.parametrize(
    "expression",
    [
        "n = 4",
        "n=4 and f>4.0",
        "4 = n",
        "n <> 5",
        "n > 3 AND n >= 4 AND n < 5 AND n <= 4",
        "n BETWEEN 3 AND 5",
        "n NOT BETWEEN 5 AND 9",
        "f between 4.4 and 4.6",
        "n > -1",
        "n > - 1.5e0",
        "n > +3",
        "text = 'it''s'",
        "region IN ('eu', 'us')",
        "region NOT IN ('eu')",
        "missing IS NULL",
        "n IS NOT NULL",
        "missing = 1 OR n = 4",
        "NOT (n = 5)",
        "yes = TRUE",
        "(n = 4 OR n = 5) AND region = 'us'",
        "n = 5 OR n = 4 AND region = 'us'",
        "region CONTAINS 'u' AND region STARTSWITH 'u' AND region ENDSWITH 's'",
        "region NOT CONTAINS 'x'",
        "n /* a comment */ = 4 -- and another",
        "big > 3000000000.0 OR big = 3000000000",
        "n = 4L",
        "n > .5",
        "n < f",
        "TRUE",
    ],
)
def test_messages_for_which_an_expression_is_true_are_let_through(expression: str) -> None:
    assert compile_expression(expression)(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "n = 5",
        "n <> 4",
        "n < 4",
        "n > 4",
        "NOT n = 5",  # NOT binds to n alone
        "missing = 1",
        "missing <> 1",
        "NOT missing = 1",
        "missing > 1",
        "missing BETWEEN 1 AND 2",
        "missing IN ('a')",
        "missing NOT IN ('a')",
        "missing",
        "NOT missing",
        "n IS NULL",
        "word > 3",
        "f > 4",  # 4.5 is not an int
        "word = 4",
        "big > 5",
        "region > n",
        "n = 4 AND missing = 1",
        "word = 4 OR n = 4",
        "yes",
        "FALSE",
        "NULL IS NOT NULL",
        "missing CONTAINS 'a'",
        "missing NOT CONTAINS 'a'",
        "region CONTAINS ''",
        "TRUE = region",
    ],
)
def test_messages_for_which_an_expression_is_false_or_unknown_are_held_back(expression: str) -> None:
    assert not compile_expression(expression)(MESSAGE)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "ends too early"),
        ("n =", "ends too early"),
        ("n = 4 5", "follows the end"),
        ("(n = 4", "expected"),
        ("4", "not a condition"),
        ("'a'", "not a condition"),
        ("n > 'a'", "only numbers"),
        ("n > TRUE", "only numbers"),
        ("(n = 4) > 3", "only numbers"),
        ("n = NULL", "IS NULL"),
        ("n BETWEEN 5 AND 3", "smaller number"),
        ("n BETWEEN 'a' AND 'b'", "only numbers"),
        ("n IN (1, 2)", "a 'text' is expected"),
        ("n IN ()", "a 'text' is expected"),
        ("4 IN ('a')", "property"),
        ("n NOT 4", "BETWEEN or CONTAINS or ENDSWITH or IN or STARTSWITH is expected where the expression has '4'"),
        ("n ; m", "cannot be read"),
        ("'open", "cannot be read"),
        ("n = 9223372036854775808", "larger"),
        ("n = 1e999", "range of a double"),
        ("(" * 100 + "n = 4" + ")" * 100, "nested"),
        ("NOT " * 100 + "n = 4", "nested"),
        ("n = 4 AND " * 3000 + "n = 4", "characters"),
        ("IS NULL", "value is expected"),
    ],
)
def test_an_invalid_expression_is_refused_with_an_error_message(expression: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compile_expression(expression)


def test_long_chains_are_evaluated_without_recursion() -> None:
    chain = compile_expression(" OR ".join(f"n = {k}" for k in range(1000)))
    assert chain({"n": "999"})
    assert not chain({"n": "1000"})


VALUES = ["n", "m", "'a'", "4", "4.5", "NULL", "TRUE"]
SIGNS = ["AND", "OR", "NOT", "(", ")", "=", "<>", "<", ">=", "BETWEEN", "IN", "IS", ",", "-", "CONTAINS"]
WORDS = st.sampled_from(VALUES + SIGNS)
TEXTS = st.one_of(st.lists(WORDS, max_size=14).map(" ".join), st.text(max_size=40))


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.dictionaries(st.sampled_from("nm"), st.text(max_size=5)))
def test_any_text_is_an_expression_or_gives_an_error_message(expression: str, properties: dict[str, str]) -> None:
    try:
        lets_through = compile_expression(expression)
    except UsageError:
        return
    assert lets_through(properties) in (True, False)
