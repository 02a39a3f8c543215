"""`phalanx launch ssh`: hosts that are reached with ssh."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import click

from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import (
    CPUS,
    DATA_WORKERS,
    GPUS,
    GRACE,
    NO_MEMORY,
    NO_TENSORBOARD,
    make_job,
    options,
)
from phalanx.launch.backends.ssh.launcher import SshLauncher
from phalanx.launch.backends.ssh.plan import Host, SshOptions
from phalanx.launch.job_store import JobStore


@click.command(name="ssh", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    CPUS,
    GPUS,
    NO_MEMORY,
    NO_TENSORBOARD,
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="HOST[=ADDRESS]",
        help="A host as ssh is given it, and its address for the others. Repeat it.",
    ),
    click.option(
        "--directory",
        metavar="DIR",
        help="Where the program is run on every host  [default: the path of this directory]",
    ),
    click.option(
        "--copy",
        "copies",
        multiple=True,
        metavar="PATH",
        help="Copy this file or directory into it first. Nothing else is copied.",
    ),
    click.option("--python", default="python3", show_default=True, help="The hosts' Python."),
    click.option(
        "--port",
        type=click.IntRange(1, 65000),
        default=2222,
        show_default=True,
        help="Of the first task on a host; the others follow.",
    ),
    click.option(
        "--ssh-option", "ssh_options", multiple=True, metavar="NAME=VALUE", help="As with ssh -o."
    ),
    GRACE,
)
def command(**values: Any) -> None:
    """Start the tasks of a job on several hosts, with nothing but ssh.

    The tasks are dealt out to the hosts in turn; ssh must need no password. A process of this
    machine looks after them: it has to stay on until the job is over.

    \b
    Example:
      phalanx launch ssh --host gpu1 --host gpu2 --workers 2 --ps 1 \\
          --copy train.py --directory /scratch/digits train.py --rate 0.1
    """
    job = make_job(values)
    place = SshOptions(
        hosts=tuple(Host.parse(each) for each in values["hosts"]),
        directory=values["directory"] or str(Path.cwd()),
        port=values["port"],
        python=values["python"],
        options=values["ssh_options"],
        copies=values["copies"],
    )
    directory = JobStore.of_user().directory / job.name
    launcher = SshLauncher(place, directory, uuid.uuid4().hex, values["grace"])
    launch("ssh", launcher, job, values)
