"""Run shards on a Dask cluster that is there.

Every machine needs this version of matchserve, the images under the same path, and the same place
of results: a shared file system or an object store. Results are files by content, so it does not
matter how often Dask runs a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from matchserve.collections.pool import Task
from matchserve.errors import CapacityError, WorkerLost
from matchserve.libraries import import_distributed, import_faiss, use_one_opencv_thread

T = TypeVar("T")

CONNECT_S = 30
TASKS_PER_THREAD = 2
"""Number of tasks that wait or run for each thread of the cluster."""


class DaskPool:
    """The workers of a cluster; receipts of a few hundred bytes come back, and no arrays."""

    def __init__(self, address: str) -> None:
        """Connect to a scheduler.

        Raises:
            ProviderUnavailable: distributed is not installed.
            CapacityError: the scheduler does not answer.
        """
        self._distributed = import_distributed()
        self.address = address
        try:
            self._client = self._distributed.Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise CapacityError(f"cannot connect to the Dask scheduler at {address}") from error

    def run(self, work: Callable[..., T], tasks: Sequence[Task]) -> Iterator[tuple[int, T]]:
        """Yield the number of each task and its result, in the order in which they finish.

        Raises:
            WorkerLost: a task has killed several workers.
            CapacityError: the scheduler is gone; the same command continues.
        """
        waiting = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        completed = self._distributed.as_completed()

        def fill() -> None:
            threads = sum(self._client.nthreads().values())
            while waiting and len(running) < TASKS_PER_THREAD * max(1, threads):
                number = waiting.popleft()
                future = self._client.submit(_run, work, tasks[number], pure=False)
                running[future] = number
                completed.add(future)

        with self._typed_errors():
            fill()
            for future in completed:
                number, result = running.pop(future), future.result()
                # Dask would make a result again that is lost with its worker.
                future.release()
                fill()
                yield number, result

    def close(self) -> None:
        """Leave the cluster; its workers go on running."""
        self._client.close(timeout=5)

    def _typed_errors(self) -> _TypedErrors:
        return _TypedErrors(self._distributed, self.address)


class _TypedErrors:
    """Turns errors of Dask into ours."""

    def __init__(self, distributed: Any, address: str) -> None:
        self._distributed, self._address = distributed, address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self._distributed.KilledWorker):
            raise WorkerLost("workers of the cluster were killed again and again") from error
        gone = (
            self._distributed.CancelledError, self._distributed.comm.CommClosedError, OSError,
            TimeoutError,
        )  # fmt: skip
        if isinstance(error, gone):
            raise CapacityError(
                f"the Dask scheduler at {self._address} is gone; run the same command again"
            ) from error


def _run(work: Callable[..., T], task: Task) -> T:
    """Run a task on a worker as a local worker would: every task has one thread."""
    use_one_opencv_thread()
    import_faiss().omp_set_num_threads(1)
    return work(*task)
