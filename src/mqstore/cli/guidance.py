"""`help` and `completion`: the help of a command, and the script with which a shell completes commands, options and paths."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mqstore.errors import UsageError
from mqstore.table.formatting import did_you_mean

VARIABLE = "_MQSTORE_COMPLETE"  # set by the script when the shell asks for completions


class Shell(StrEnum):
    """A shell that has completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def complete() -> None:
    """Prepare the parser to answer a shell that asks for completions, instead of running a command."""
    from typer._completion_classes import completion_init

    completion_init()


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""

    @app.command("help", rich_help_panel="Help", epilog="Example: mqstore help verify")
    def help_(
        context: typer.Context,
        command: Annotated[str | None, typer.Argument(help="The command.", show_default=False)] = None,
    ) -> None:
        """Show the help of a command, or of all commands."""
        above: Any = context.parent
        if command is None:
            print(above.get_help())
            return
        found = above.command.get_command(above, command)
        if found is None:
            meant = did_you_mean(command, above.command.list_commands(above))
            raise UsageError(f"there is no command {command!r}{meant or '; `mqstore help` lists the commands'}")
        with type(context)(found, info_name=command, parent=above) as its:
            print(found.get_help(its))

    @app.command("completion", rich_help_panel="Help", epilog="Example: mqstore completion bash >> ~/.bashrc")
    def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)]) -> None:
        """Print the script with which a shell completes commands, options and paths.

        bash: add it to ~/.bashrc; zsh: save it as _mqstore in a directory of $fpath; fish: save it as
        ~/.config/fish/completions/mqstore.fish.
        """
        from typer._completion_shared import get_completion_script

        print(get_completion_script(prog_name="mqstore", complete_var=VARIABLE, shell=shell.value))
