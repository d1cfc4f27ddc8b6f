"""`--between FROM..TO`: a range of times in one word, or in two: `--between FROM TO`.

>>> join_ranges(["messages", "store", "--between", "3h", "2h"])
['messages', 'store', '--between', '3h..2h']
>>> time_range("5..9"), time_range("5,9")
((5, 9), (5, 9))
"""

from __future__ import annotations

from collections.abc import Sequence

from mqstore.errors import UsageError
from mqstore.table.formatting import parse_time


def join_ranges(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with those of `--between FROM TO` as one: `--between FROM..TO`."""
    joined = list(words)
    for place, word in enumerate(words):
        if word == "--between" and [_is_time(each) for each in words[place + 1 : place + 3]] == [True, True]:
            joined[place + 1 : place + 3] = ["..".join(words[place + 1 : place + 3])]
            break
    return joined


def time_range(text: str) -> tuple[int, int]:
    """Parse FROM..TO or FROM,TO. Raises UsageError."""
    begin, mark, end = text.partition("..")
    if not mark:
        begin, mark, end = text.partition(",")
    if not begin.strip() or not end.strip():
        raise UsageError(
            f"--between {text!r} does not give two times; write --between FROM..TO or --between FROM TO, such as 3h..2h or "
            "2024-05-01..2024-05-02"
        )
    return parse_time(begin, "--between"), parse_time(end, "--between")


def _is_time(text: str) -> bool:
    try:
        parse_time(text, "--between")
    except UsageError:
        return False
    return True
