"""Several jobs on a few threads, with one outcome: all results in order, or the error of whoever failed first.

The work is hashing, reading and writing, which let go of the interpreter's lock, so that two threads use two cores.
When one job fails, or the main thread is interrupted, the others are told to stop (they look at the event once a
block) and are waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from .digest import Cancelled, Stop

_LOOK: Final = 0.05  # seconds between two looks at whether to stop
_PATIENCE: Final = 0.7  # seconds that a job gets to notice
T = TypeVar("T")
Job = Callable[[Stop], T]


class Linked:
    """An event that is set by itself or by the one around it."""

    def __init__(self, outer: Stop | None = None) -> None:
        self._own = threading.Event()
        self._outer = outer

    def set(self) -> None:
        """Stop these jobs, and not the ones around them."""
        self._own.set()

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._own.is_set() or (self._outer is not None and self._outer.is_set())


class _Team(Generic[T]):
    def __init__(self, jobs: Sequence[Job[T]], outer: Stop | None) -> None:
        self.stop = Linked(outer)
        self.finished = threading.Semaphore(0)
        self._stopped = 0.0
        self.errors: list[BaseException] = []
        self.results: dict[int, T] = {}
        self._queue: SimpleQueue[tuple[int, Job[T]]] = SimpleQueue()
        for item in enumerate(jobs):
            self._queue.put(item)

    def run(self) -> None:
        """Take jobs until there are none, then say so: a join that a signal breaks off cannot be waited on again."""
        try:
            self._work()
        finally:
            self.finished.release()

    def _work(self) -> None:
        while not self.stop.is_set():
            try:
                number, job = self._queue.get_nowait()
            except Empty:
                return
            try:
                self.results[number] = job(self.stop)
            except Cancelled:
                return
            except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
                self.errors.append(error)
                self.stop.set()

    def late(self, stop: Stop | None, patience: float) -> bool:
        """Whether the jobs were told to stop so long ago that one must be in a call that the disk does not answer. It
        holds no descriptor that anybody else could get, and ends with that call."""
        if stop is None or not stop.is_set():
            return False
        self._stopped = self._stopped or time.monotonic()
        return time.monotonic() - self._stopped > patience


def run_all(jobs: Sequence[Job[T]], workers: int = 2, outer: Stop | None = None) -> list[T]:
    """Run the jobs, the first ones first, on `workers` threads; return their results in order.

    Raises the first error, or Cancelled if `outer` says to stop.
    """
    team = _Team(jobs, outer)
    waiting = 0
    try:
        for i in range(min(workers, len(jobs))):
            threading.Thread(target=team.run, name=f"depickle-{i}", daemon=True).start()
            waiting += 1
        while waiting and not team.late(outer, _PATIENCE):
            waiting -= team.finished.acquire(timeout=_LOOK)
    except BaseException:
        team.stop.set()
        while waiting and not team.late(team.stop, 2 * _PATIENCE):  # jobs may have jobs of their own
            waiting -= team.finished.acquire(timeout=_LOOK)
        raise
    if team.errors:
        raise team.errors[0]
    if len(team.results) != len(jobs):
        raise Cancelled
    return [team.results[i] for i in range(len(jobs))]
