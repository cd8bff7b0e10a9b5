"""The process of one job: reads an order from standard input, prints progress as lines of JSON.

It has a low priority, so that requests are not slowed, and ends when its parent does. The last
line is the outcome: the results, or the error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, get_type_hints

from matchserve.errors import MatchServeError

LOWEST = 19
"""The highest niceness, which is the lowest priority."""


def order_text(order: Any) -> str:
    """Return an order as one line of JSON."""
    fields = {f.name: getattr(order, f.name) for f in dataclasses.fields(order)}
    return json.dumps({**fields, "request": order.request.model_dump()}, default=str)


def _read_order(text: str) -> Any:
    from matchserve.jobs.kinds import JobRequest, Order

    fields = json.loads(text)
    request = JobRequest.model_validate(fields.pop("request"))
    hints = get_type_hints(Order)
    for name, value in fields.items():
        if value is not None and hints[name] in (Path, Path | None):
            fields[name] = Path(value)
    return Order(request=request, **fields)


def main() -> None:
    """Do the job of standard input."""
    # Libraries read it when they are imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    text = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lower_priority(json.loads(text)["niceness"])  # before the imports, which take seconds
    try:
        from matchserve.memory import share_heaps

        share_heaps(1)
        from matchserve.jobs.kinds import run_job, summary_of

        order = _read_order(text)
        for step in run_job(order):
            _print({"progress": dataclasses.asdict(step)})
        _print({"outcome": summary_of(order)})
    except MatchServeError as error:
        detail = without_places(error.message, json.loads(text))
        _print({"error": {"code": error.code, "detail": detail}})


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process and of those that it starts.

    The lowest one is that of Linux's idle policy: such a process makes way at once for one that has
    something to do, while one of niceness 19 first ends its time slice.
    """
    os.nice(niceness)
    if niceness >= LOWEST and sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def lower_session(niceness: int) -> None:
    """Lower the priority of the session that this process leads, if it leads one.

    Linux may share processor time between sessions first (autogroups): then the priority among
    processes alone would leave a session of jobs half of the machine.
    """
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without autogroups
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def without_places(message: str, fields: dict[str, Any]) -> str:
    """Return a message that does not tell clients where the service keeps its files."""
    for name in ("images", "workspace", "store", "results"):
        message = message.replace(fields[name], "the collection")
    return message


def _print(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """End this process at once when the other end of standard input is closed."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
