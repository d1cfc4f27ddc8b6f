"""`help` and `completion`: the help of a command, and the script with which a shell completes commands, options and paths."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mqstore.cli.common.command import PlainCommand, common_options
from mqstore.errors import UsageError
from mqstore.table.formatting import did_you_mean

_OUTPUT = "The options of every command; they are accepted before its name, too."


class Shell(StrEnum):
    """A shell that has completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_STATUSES = "Exit status: 0 done; 2 not done, one sentence says why."


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""

    @app.command("help", cls=PlainCommand, epilog=f"{_STATUSES}\n\nExample: mqstore help verify")
    def help_(
        context: typer.Context,
        command: Annotated[str | None, typer.Argument(metavar="COMMAND", help="The command, or output.", show_default=False)] = None,
    ) -> None:
        """Show the help of a command, of `output` (the options of every command), or of all commands."""
        above: Any = context.parent
        if command == "output":
            options = common_options(above.command.get_command(above, "verify"))
            shown = PlainCommand("COMMAND", params=options, help=_OUTPUT, add_help_option=False, rich_markup_mode="rich")
            print(shown.get_help(type(context)(shown, info_name="COMMAND", parent=above)), end="")
            return
        if command is None:
            print(above.get_help())
            return
        own = above.command.get_command(above, command)
        if own is None:
            meant = did_you_mean(command, above.command.list_commands(above))
            raise UsageError(f"there is no command {command!r}{meant or '; `mqstore help` lists the commands'}")
        with type(context)(own, info_name=command, parent=above) as its:
            print(own.get_help(its))

    @app.command(
        "completion",
        cls=PlainCommand,
        epilog=f"{_STATUSES}\n\nExample: mqstore completion bash >> ~/.bashrc",
    )
    def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)]) -> None:
        """Print the script with which a shell completes commands, options and paths.

        bash: add it to ~/.bashrc; zsh: save it as _mqstore in a directory of $fpath; fish: save it as
        ~/.config/fish/completions/mqstore.fish.
        """
        from typer._completion_shared import get_completion_script

        print(get_completion_script(prog_name="mqstore", complete_var="_MQSTORE_COMPLETE", shell=shell.value))
