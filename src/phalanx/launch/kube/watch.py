"""One watch for all who follow a job: its pods as they change, and whether it is over."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from phalanx.errors import LaunchError
from phalanx.launch.base import JobResult
from phalanx.launch.kube.client import Client
from phalanx.launch.kube.manifest import Manifest

_RESULT_SECONDS = 1.0


@dataclass(frozen=True)
class Snapshot:
    """The pods of a job at one time, the oldest first; `over` if nothing will change any more."""

    pods: tuple[Manifest, ...]
    over: bool


def _start(run: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()


class JobWatch:
    """Asks the API once for all followers: one watch of pods, and one question for the result."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._error: LaunchError | None = None
        self._followers = 0
        # Numbers the attempts, so that the threads of one that has failed do not disturb the next.
        self._attempt = 0
        self._active = False

    def snapshots(
        self,
        client: Client,
        selector: str,
        namespace: str,
        result: Callable[[], JobResult | None],
        every: float | None = None,
    ) -> Iterator[Snapshot]:
        """Yield the newest snapshot after each change until the job is over.

        Args:
            client: The connection to the cluster.
            selector: The labels of the pods.
            namespace: Their namespace.
            result: Returns how the job has ended, or None.
            every: After so many seconds without a change, yield the same snapshot again.

        Raises:
            LaunchError: The API does not answer.
        """
        with self._changed:
            self._followers += 1
            if not self._active:
                self._active, self._error, self._snapshot = True, None, None
                self._attempt += 1
                pods = partial(client.watch_pods, selector, namespace)
                _start(self._watch_pods, self._attempt, pods)
                last = partial(client.pods, selector, namespace)
                _start(self._await_result, self._attempt, result, last)
        try:
            seen: Snapshot | None = None
            while seen is None or not seen.over:
                seen = self._next(seen, every)
                if seen is not None:
                    yield seen
        finally:
            with self._changed:
                self._followers -= 1
                self._active = self._active and self._followers > 0

    def _next(self, seen: Snapshot | None, timeout: float | None) -> Snapshot | None:
        """Wait until there is another snapshot than `seen`, or for the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._snapshot is not seen, timeout)
            if self._error is not None:
                raise type(self._error)(str(self._error))
            return self._snapshot

    def _watch_pods(self, attempt: int, watch: Callable[[], Iterator[list[Manifest]]]) -> None:
        try:
            for pods in watch():
                if not self._publish(attempt, Snapshot(tuple(pods), over=False)):
                    return
        except LaunchError as error:
            self._fail(attempt, error)

    def _await_result(
        self,
        attempt: int,
        result: Callable[[], JobResult | None],
        last: Callable[[], list[Manifest]],
    ) -> None:
        try:
            while result() is None:
                if not self._is_current(attempt):
                    return
                time.sleep(_RESULT_SECONDS)
            self._publish(attempt, Snapshot(tuple(last()), over=True))
        except LaunchError as error:
            self._fail(attempt, error)

    def _is_current(self, attempt: int) -> bool:
        with self._changed:
            return self._active and attempt == self._attempt

    def _publish(self, attempt: int, snapshot: Snapshot) -> bool:
        """Set the snapshot; return whether it was wanted."""
        with self._changed:
            if not self._active or attempt != self._attempt:
                return False
            if self._snapshot is not None and self._snapshot.over:
                return False
            self._snapshot = snapshot
            self._changed.notify_all()
            return True

    def _fail(self, attempt: int, error: LaunchError) -> None:
        with self._changed:
            if self._active and attempt == self._attempt:
                self._error, self._active = error, False
                self._changed.notify_all()
