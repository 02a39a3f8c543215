"""CommandGroup: a group of commands whose help shows the first paragraph of each."""

import inspect

import click


class CommandGroup(click.Group):
    """Lists its commands with whole summaries, where click cuts them off after 45 characters."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                summary = inspect.cleandoc(command.help or "").partition("\n\n")[0]
                rows.append((name, " ".join(summary.split())))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
