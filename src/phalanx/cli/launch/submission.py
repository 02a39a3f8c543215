"""A command that launches: reads phalanx.toml, submits, remembers, follows."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from phalanx.cli.follow import follow_job
from phalanx.cli.launch.job_file import DEFAULT, read_job_file, settings
from phalanx.cli.program_command import ProgramCommand
from phalanx.cli.status import attach
from phalanx.cluster.spec import count_roles
from phalanx.errors import JobError, PhalanxError
from phalanx.launch import registry
from phalanx.launch.base import LastingHandle, LastingLauncher, TaskState
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobRecord, JobStore

_POLL_SECONDS = 1.0
_END_SECONDS = 120.0


class LaunchCommand(ProgramCommand):
    """Lets phalanx.toml stand in for what is not on the command line."""

    def __init__(self, *args: Any, **more: Any) -> None:
        more["context_settings"] = {"allow_interspersed_args": False}
        super().__init__(*args, **more)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Find the file before anything else is read."""
        given, helps = self._read_ahead(list(args), parent)
        path = Path(given or DEFAULT)
        # Whoever asks for help may do so because of the file.
        if not helps and (given or path.is_file()):
            content = read_job_file(path)
            extra["default_map"] = settings(content, self, registry.names(), str(path))
        return super().make_context(info_name, args, parent, **extra)

    def _read_ahead(self, args: list[str], parent: click.Context | None) -> tuple[str | None, bool]:
        """The value of --file, and whether there is a --help; errors are left to click."""
        context = click.Context(self, parent, resilient_parsing=True, allow_interspersed_args=False)
        try:
            values, _, _ = self.make_parser(context).parse_args(args=args)
        except click.UsageError:
            return None, False
        file, help_option = values.get("file"), self.get_help_option(context)
        helps = help_option is not None and help_option.name in values
        return (file if isinstance(file, str) else None), helps


def launch(
    backend: str, launcher: LastingLauncher[Any], job: Job, values: Mapping[str, Any]
) -> None:
    """Print the plan, or carry it out and remember the job."""
    plan = launcher.plan(job)
    if values["dry_run"]:
        click.echo(plan.render())
        return
    job_store = JobStore.of_user()
    check_free(job_store, job.name)
    handle = launcher.submit(plan)
    try:
        job_store.write(JobRecord(job.name, backend, dict(handle.facts())))
    except BaseException:
        handle.cancel()
        raise
    if values.get("start_within"):
        wait_for_start(job_store, job.name, handle, values["start_within"])
    click.echo(f"phalanx: {job.name} is submitted: {count_roles(job.all_tasks())}", err=True)
    if values["follow"]:
        sys.exit(follow_job(job.name, handle))
    click.echo(f"phalanx: see it with: phalanx status {job.name}", err=True)


def wait_for_start(job_store: JobStore, name: str, handle: LastingHandle, seconds: float) -> None:
    """Raise a JobError, and leave nothing of the job, unless all tasks have started by then."""
    deadline = time.monotonic() + seconds
    while waiting := [each for each in handle.status() if each.state is TaskState.WAITING]:
        if handle.wait(0) is not None:
            return
        if time.monotonic() > deadline:
            handle.cancel()
            handle.wait(_END_SECONDS)
            handle.cancel()
            job_store.forget(name)
            reason = next((each.last_line for each in waiting if each.last_line), "no reason known")
            raise JobError(
                f"{name} was taken back: {waiting[0].task} had not started after {seconds:g} s "
                f"({reason})"
            )
        time.sleep(_POLL_SECONDS)


def check_free(job_store: JobStore, name: str) -> None:
    """Raise a JobError if a job of this name still runs."""
    record = job_store.find(name)
    if record is None:
        return
    try:
        if attach(record).wait(0) is not None:
            return
        reason = ""
    except PhalanxError as error:
        reason = f", and what became of it is unknown ({error})"
    raise JobError(
        f"there is already a job {name!r} ({record.launcher}){reason}: choose another --name, "
        f"or end it with: phalanx cancel {name}"
    )
