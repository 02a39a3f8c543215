"""`phalanx export`: a trained model as a SavedModel."""

from __future__ import annotations

import click

from phalanx.cli.trained_program import checkpoint_options, open_trained


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="Where it trained.  [default: the program's own]")
@click.option("--out", required=True, metavar="DIR", help="Where the versions go.")
@click.option(
    "--version",
    type=click.IntRange(min=1),
    metavar="N",
    help="The version's number.  [default: the next]",
)
@checkpoint_options
def command(
    program: str,
    arguments: tuple[str, ...],
    model_dir: str | None,
    out: str,
    version: int | None,
    checkpoint: str,
    metric: str,
    best: str | None,
) -> None:
    """Write the model that PROGRAM trained as a SavedModel into DIR/VERSION.

    PROGRAM is run up to its phalanx.run, with ARGUMENTS (after --) as its own flags; nothing is
    trained. The SavedModel has two signatures: serving_default takes the model's inputs,
    serving_examples takes serialized Examples, with the experiment's preprocessing inside. The
    path of the new version is printed.

    \b
    Example:
      phalanx export train.py --model-dir runs/digits --checkpoint best --out models/digits
      phalanx serve models/digits
    """
    found, trained = open_trained(program, arguments, model_dir, checkpoint, metric, best)
    from phalanx.train.export.saved_model import export  # noqa: PLC0415

    path = export(found.experiment, trained, out.rstrip("/"), version)
    click.echo(path)
