"""Text tables: they fit the terminal, and no text from a store reaches it as a control sequence."""

from __future__ import annotations

from mqstore.cli.common.grid import Grid
from mqstore.report.parts import Column
from mqstore.table.formatting import display_width


def grid(rows: list[list[str]], *, width: int | None, columns: tuple[Column, ...]) -> list[str]:
    written: list[str] = []
    made = Grid(columns, written.append, width=width, colour=False)
    made.add(rows)
    made.close()
    return "".join(written).splitlines()


NAME_AND_NUMBER = (Column("name", flexible=True), Column("number", right=True))


def test_control_characters_in_a_table_are_escaped() -> None:
    assert "\x1b" not in "".join(grid([["\x1b[2J", "1"]], width=40, columns=NAME_AND_NUMBER))


def test_numbers_are_aligned_right_and_names_left() -> None:
    assert grid([["orders", "5"], ["late", "12345678"]], width=80, columns=NAME_AND_NUMBER) == [
        "name      number",
        "──────  ────────",
        "orders         5",
        "late    12345678",
    ]


def test_a_long_text_takes_several_lines_and_loses_nothing() -> None:
    lines = grid([["x" * 45, "12345678"], ["short", "9"]], width=30, columns=NAME_AND_NUMBER)
    assert lines[2:] == [
        f"{'x' * 20}  12345678",
        "x" * 20,
        "x" * 5,
        "short                        9",
    ]


def test_a_text_is_broken_at_a_blank_else_after_a_separator() -> None:
    lines = grid([["order-4711-eu-west 2022-01-01", "1"]], width=24, columns=NAME_AND_NUMBER)
    assert [line[:16].rstrip() for line in lines[2:]] == ["order-4711-eu-", "west 2022-01-01"]


def test_a_path_is_shortened_in_the_middle_of_its_directories_and_names_stay_whole() -> None:
    columns = (Column("store", flexible=True, path=True), Column("number", right=True))
    path = "/backup/of/every/broker/in/the/cluster/store-7"
    for width, wanted in (
        (60, path),
        (45, "/backup/of/…/in/the/cluster/store-7"),
        (30, "/…/the/cluster/store-7"),
        (26, "/…/cluster/store-7"),
    ):
        lines = grid([[path, "1"]], width=width, columns=columns)
        assert lines[2].split()[0] == wanted, width
        assert max(map(len, lines)) <= width


def test_paths_that_end_alike_stay_apart() -> None:
    columns = (Column("store", flexible=True, path=True), Column("number", right=True))
    lines = grid([["/backup/of/broker-a/data/store", "1"], ["/backup/of/broker-b/data/store", "1"]], width=32, columns=columns)
    assert [line.split()[0] for line in lines[2:]] == ["/…/broker-a/data/store", "/…/broker-b/data/store"]


def test_a_table_written_to_a_file_is_not_shortened() -> None:
    assert "x" * 100 in grid([["x" * 100, "1"]], width=None, columns=NAME_AND_NUMBER)[2]


def test_a_table_for_which_there_is_room_is_printed_in_full() -> None:
    assert grid([["x" * 100, "1"]], width=120, columns=NAME_AND_NUMBER)[2] == f"{'x' * 100}       1"


def test_wide_characters_take_two_columns() -> None:
    assert display_width("订单") == 4
    lines = grid([["订单订单订单订单订单", "1"]], width=20, columns=NAME_AND_NUMBER)
    assert max(map(display_width, lines)) <= 20


def test_a_table_of_many_rows_keeps_the_widths_of_its_first_ones() -> None:
    lines = grid([[f"n{k}", str(k)] for k in range(2000)], width=80, columns=NAME_AND_NUMBER)
    assert len(lines) == 2002
    assert len({len(line) for line in lines[2:900]}) == 1


def test_a_later_row_that_is_wider_takes_the_room_there_is() -> None:
    rows = [[f"n{k}", str(k)] for k in range(1000)]
    lines = grid([*rows, ["x" * 60, "1"], ["y" * 90, "1"]], width=80, columns=NAME_AND_NUMBER)
    assert lines[1002] == f"{'x' * 60}       1"
    assert "".join(line.split()[0] for line in lines[1003:]) == "y" * 90
    assert max(map(len, lines)) <= 80


def test_a_table_without_rows_prints_nothing() -> None:
    assert grid([], width=80, columns=NAME_AND_NUMBER) == []


WIDE = (
    Column("physical offset", right=True),
    Column("topic", flexible=True),
    Column("stored (UTC)"),
    Column("size", right=True, drop=1),
    Column("tags", flexible=True, drop=2),
    Column("keys", flexible=True),
)
ROW = ["1234", "orders-of-the-north-west", "2022-01-01 00:00", "203", "TagB", "order-1234567890 customer-17"]


def test_titles_take_two_lines_before_anything_else() -> None:
    assert grid([ROW], width=94, columns=WIDE) == [
        "physical",
        "  offset  topic                     stored (UTC)      size  tags  keys",
        "────────  ────────────────────────  ────────────────  ────  ────  ────────────────────────────",
        "    1234  orders-of-the-north-west  2022-01-01 00:00   203  TagB  order-1234567890 customer-17",
    ]


def test_columns_are_left_out_by_rank_and_named_if_that_saves_lines() -> None:
    lines = grid([ROW], width=88, columns=WIDE)
    assert lines[-2].startswith("    1234  orders-of-the-north-west  2022-01-01 00:00   203  order-")
    assert lines[-1] == "not shown at this width: tags (--wide; --columns chooses)"
    lines = grid([ROW], width=82, columns=WIDE)
    assert lines[-2].startswith("    1234  orders-of-the-north-west  2022-01-01 00:00  order-")
    assert lines[-1] == "not shown at this width: size, tags (--wide; --columns chooses)"


def test_a_terminal_that_is_too_narrow_for_a_table_gets_each_row_as_lines_with_everything() -> None:
    width = 2 + max(len(column.title) for column in WIDE) + 12
    lines = grid([ROW, ROW], width=width, columns=WIDE)
    assert max(map(display_width, lines)) <= width
    first, second = (block.split("\n") for block in "\n".join(lines).strip("\n").split("\n\n"))
    assert first == second
    margin = max(len(column.title) for column in WIDE) + 2
    assert [line[:margin].strip() for line in first if line[:margin].strip()] == [column.title for column in WIDE]
    assert "".join(line[margin:] for line in first).replace(" ", "") == "".join(ROW).replace(" ", "")
