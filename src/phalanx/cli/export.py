"""`phalanx export`: export a trained model as a SavedModel."""

from __future__ import annotations

import click

from phalanx.cli.trained_model import CheckpointChoice, checkpoint_options, load_model


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="The run's directory.  [default: the program's]")
@click.option("--out", required=True, metavar="DIR", help="The directory of the model's versions.")
@click.option(
    "--version",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of the new version.  [default: the next]",
)
@checkpoint_options
def command(
    program: str,
    arguments: tuple[str, ...],
    model_dir: str | None,
    out: str,
    version: int | None,
    checkpoint: CheckpointChoice,
) -> None:
    """Export the model that PROGRAM trained as a SavedModel into DIR/VERSION.

    PROGRAM runs up to its call of phalanx.run, with ARGUMENTS (after --) as its flags, and trains
    nothing. The SavedModel has two signatures: serving_default takes the model's inputs, and
    serving_examples takes serialized Examples, to which it applies the experiment's preprocessing.
    The command prints the path of the new version.

    \b
    Example:
      phalanx export train.py --model-dir runs/digits --checkpoint best --out models/digits
      phalanx serve models/digits
    """
    found, trained_model = load_model(program, arguments, model_dir, checkpoint)
    from phalanx.train.export.saved_model import export  # noqa: PLC0415

    click.echo(export(found.experiment, trained_model, out.rstrip("/"), version))
