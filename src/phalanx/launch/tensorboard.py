"""TensorBoard beside a job, where its manager can keep one running."""

from __future__ import annotations

from phalanx.errors import JobError
from phalanx.launch.job import Job

PORT = 6006


def tensorboard_command(job: Job, python: str, port: int = PORT) -> list[str]:
    """What shows the job's model directory, on all addresses of its host.

    >>> from phalanx.launch.job import Program, ProgramKind
    >>> job = Job("digits", Program(ProgramKind.FILE, "train.py"), model_dir="gs://bucket/digits")
    >>> print(*tensorboard_command(job, "python"))
    python -m tensorboard.main --logdir=gs://bucket/digits --bind_all --port=6006
    """
    if not job.model_dir:
        raise JobError("TensorBoard has nothing to show without --model-dir")
    start = [python, "-m", "tensorboard.main"]
    return [*start, f"--logdir={job.model_dir}", "--bind_all", f"--port={port}"]
