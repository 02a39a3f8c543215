"""Submits a job: checks that its name is free, records it, and follows it."""

import time

from phalanx.cli.follow import exit_at_once, follow_job, print_message
from phalanx.cli.jobs import attach
from phalanx.cli.options import print_plan
from phalanx.cluster.spec import count_roles
from phalanx.errors import JobError, PhalanxError
from phalanx.launch.base import LastingHandle, LastingLauncher, PlanT, TaskState
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobRecord, JobStore
from phalanx.launch.options import OptionValues

_POLL_SECONDS = 1.0
_END_SECONDS = 120.0


def launch(backend: str, launcher: LastingLauncher[PlanT], job: Job, values: OptionValues) -> None:
    """Print the plan of a job, or submit the job and record it."""
    plan = launcher.plan(job)
    if values["dry_run"]:
        print_plan(plan.render(), values)
        return
    job_store = JobStore.of_user()
    _check_name_is_free(job_store, job.name)
    handle = launcher.submit(plan)
    try:
        job_store.write(JobRecord(job.name, backend, dict(handle.facts())))
    except BaseException:
        handle.cancel()
        raise
    if values.get("start_within"):
        _wait_for_start(job_store, job.name, handle, values["start_within"])
    print_message(f"{job.name} is submitted: {count_roles(job.all_tasks())}")
    if values["follow"]:
        exit_at_once(follow_job(job.name, handle))
    print_message(f"see it with: phalanx status {job.name}")


def _wait_for_start(job_store: JobStore, name: str, handle: LastingHandle, seconds: float) -> None:
    """Cancel the job and raise a JobError unless all tasks start in time."""
    deadline = time.monotonic() + seconds
    while waiting := [each for each in handle.status() if each.state is TaskState.WAITING]:
        if handle.wait(0) is not None:
            return
        if time.monotonic() > deadline:
            handle.cancel()
            handle.wait(_END_SECONDS)
            # The second call removes what some backends keep of a job that is over.
            handle.cancel()
            job_store.forget(name)
            reason = next((each.last_line for each in waiting if each.last_line), "no reason known")
            raise JobError(
                f"{name} was cancelled: {waiting[0].task} had not started after {seconds:g} s "
                f"({reason})"
            )
        time.sleep(_POLL_SECONDS)


def _check_name_is_free(job_store: JobStore, name: str) -> None:
    record = job_store.find(name)
    if record is None:
        return
    try:
        if attach(record).wait(0) is not None:
            return
        reason = ""
    except PhalanxError as error:
        reason = f", and its state is unknown ({error})"
    raise JobError(
        f"there is already a job {name!r} ({record.launcher}){reason}: choose another --name, "
        f"or end it with: phalanx cancel {name}"
    )
