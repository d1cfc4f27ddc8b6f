"""Progress in the units of the work, and what is said after an interruption."""

from __future__ import annotations

import pytest

from mqstore.cli import main
from mqstore.cli.common.progress import interrupted_work, progress_bar


def test_a_line_of_progress_counts_in_the_units_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    for unit, amount in (("bytes", "2,000 of 2,000 bytes"), ("queues", "2,000 of 2,000 queues")):
        with progress_bar("counting", unit=unit, lines=True, console=None) as report:
            assert report is not None
            report(2000, 2000)
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", f"counting: 100% ({amount})\n")


@pytest.mark.parametrize(
    ("argv", "ends"),
    [
        (["verify", "store"], "; the store is unchanged; run it again"),
        (["export", "store", "--to", "out"], "; nothing half-written is left; run it again: one that has --resume can be continued"),
        (["export", "store", "--to", "out", "--resume"], "; run the same command again, and it continues"),
        (["convert", "store", "--to", "out"], "; nothing half-written is left; run it again"),
        (["put", "store"], ""),
    ],
)
def test_an_interruption_says_what_was_done_and_how_to_go_on(argv: list[str], ends: str) -> None:
    for done, total, far in ((40, 100, ", 40% done"), (1500, 0, ", 1,500 bytes done"), (0, 0, "")):
        with pytest.raises(KeyboardInterrupt), progress_bar("working", lines=True, console=None) as report:
            assert report is not None
            if done:
                report(done, total)
            raise KeyboardInterrupt
        assert main._interruption(argv) == f"interrupted while working{far}{ends}"
    assert interrupted_work() == ""
