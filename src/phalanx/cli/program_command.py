"""PROGRAM [ARGS]…: a file, with -m a module or, after --, any command."""

from __future__ import annotations

import click


class ProgramCommand(click.Command):
    """Keeps what click forgets: whether `--` came before the program, which makes it a command."""

    _MARK = "\0"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse with a mark after the first `--`, and see where the mark ends up."""
        marked = list(args)
        if "--" in marked:
            marked.insert(marked.index("--") + 1, self._MARK)
        rest = super().parse_args(ctx, marked)
        program, arguments = ctx.params["program"], ctx.params["arguments"]
        ctx.params["is_command"] = program == self._MARK or ctx.params.get("is_command", False)
        if program != self._MARK:
            ctx.params["arguments"] = tuple(each for each in arguments if each != self._MARK)
        elif arguments:
            ctx.params["program"], *ctx.params["arguments"] = arguments
        else:
            ctx.fail("there is nothing after --: name the command to run")
        return rest
