"""Commands to a Docker engine, through the `docker` command that the user has set up."""

import os
import subprocess
from collections.abc import Mapping

from phalanx.errors import JobError

ANSWER_SECONDS = 60.0
_PULL_SECONDS = 3600.0
NOTHING = "nothing was started"


def ask(*arguments: str, seconds: float = ANSWER_SECONDS, failing: str = NOTHING) -> str:
    """Return what `docker` prints; its error becomes a JobError that begins with `failing`."""
    return run(["docker", *arguments], seconds=seconds, failing=failing)


def run(
    command: list[str],
    *,
    seconds: float = ANSWER_SECONDS,
    failing: str = NOTHING,
    given: bytes = b"",
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run any command that talks to the engine, as `ask` does; `given` is its standard input."""
    name = command[0]
    try:
        done = subprocess.run(
            command,
            input=given,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise JobError(f"{failing}: there is no command {name}; install it") from None
    except subprocess.TimeoutExpired:
        raise JobError(f"{failing}: {name} gave no answer in {seconds:.0f} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"{name} gave no reason"
        raise JobError(f"{failing}: {reason.removeprefix('Error response from daemon: ')}")
    return done.stdout.decode(errors="replace")


def check_ready(job: str, image: str) -> None:
    """Raise a JobError unless engine and image are available and the job's name is free."""
    ask("version", "--format", "{{.Server.Version}}")
    if ask("ps", "--all", "--quiet", "--filter", f"label=phalanx.job={job}").strip():
        raise JobError(
            f"{NOTHING}: the engine has containers of a job {job!r}; "
            "choose another --name, or remove them"
        )
    try:
        ask("image", "inspect", image)
    except JobError:
        ask("pull", image, seconds=_PULL_SECONDS)
