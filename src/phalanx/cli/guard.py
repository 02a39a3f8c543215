"""`phalanx guard`: run a program whose ports only its own job can reach."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

import click

from phalanx.cli.printing import echo
from phalanx.cluster import TFConfig, detect
from phalanx.cluster.job_environment import find_dispatcher
from phalanx.cluster.spec import split_address
from phalanx.cluster.tf_config import read_variable
from phalanx.errors import JobError
from phalanx.guard.library import is_off
from phalanx.guard.plan import Guard, plan_guard


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--host",
    metavar="HOST",
    help="The host of this task in the cluster  [default: from TF_CONFIG]",
)
@click.option(
    "--peers",
    metavar="HOST,...",
    help="The hosts that may connect  [default: from TF_CONFIG]",
)
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(host: str | None, peers: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND with its ports open to its own job only.

    TensorFlow's servers listen on all interfaces and run whatever is sent to them. Under this
    command they listen on the task's own address, and refuse connections from hosts that are not
    in the job. `phalanx run` and `phalanx launch` start every task this way; use the command for
    programs that you start by hand.

    The variable PHALANX_GUARD_ALLOW has more hosts that may connect, PHALANX_GUARD_OPEN has ports
    that stay open to everybody. PHALANX_GUARD=required fails where the command cannot work, which
    otherwise is a warning; PHALANX_GUARD=off only runs COMMAND.

    \b
    Example:
      export TF_CONFIG=$(phalanx tf-config make worker 0 --worker a:2222 --worker b:2222)
      phalanx guard -- python train.py
    """
    if shutil.which(command[0]) is None:
        raise JobError(f"there is no command {command[0]}: check the name and the PATH")
    guard = _plan(host, peers, command, os.environ)
    show_warning(guard)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, {**os.environ, **guard.variables})


def _plan(
    host: str | None, peers: str | None, command: Sequence[str], environ: Mapping[str, str]
) -> Guard:
    given = [each.strip() for each in (peers or "").split(",") if each.strip()]
    config = None if (host and given) or is_off(environ) else _find_task(environ, command)
    hosts = given or _list_hosts(config, environ)
    return plan_guard(host or _find_host(config), hosts, environ, command[0])


def show_warning(guard: Guard) -> None:
    if guard.warning:
        echo(f"phalanx: warning: {guard.warning}", err=True)


def _find_task(environ: Mapping[str, str], command: Sequence[str]) -> TFConfig:
    return read_variable(environ) or detect(environ, command[1:])


def _list_hosts(config: TFConfig | None, environ: Mapping[str, str]) -> list[str]:
    addresses = list(config.cluster.addresses.values()) if config else []
    if dispatcher := find_dispatcher(environ):
        addresses.append(dispatcher)
    return [split_address(address)[0] for address in addresses]


def _find_host(config: TFConfig | None) -> str | None:
    address = config.cluster.addresses.get(config.task) if config else None
    return split_address(address)[0] if address else None
