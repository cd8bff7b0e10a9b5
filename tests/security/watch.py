"""Watch a server from outside while it is attacked: the delay of /healthz, and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from types import TracebackType

from tests.server_process import ServerProcess

_HEALTH = """
import http.client, json, select, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
slowest = 0.0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    start = time.perf_counter()
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    slowest = max(slowest, time.perf_counter() - start)
print(json.dumps(slowest))
"""


class Watch:
    """`with Watch(server) as seen`: afterwards `seen.health_s` and `seen.rss_bytes` are maxima.

    A process of its own asks for /healthz: what it sees is the server's delay, not the test's.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.health_s = 0.0
        self.rss_bytes = 0

    def __enter__(self) -> Watch:
        command = [sys.executable, "-c", _HEALTH, str(self._server.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.before_bytes = self._server.rss()
        self._thread = threading.Thread(target=self._watch_memory)
        self._thread.start()
        return self

    def _watch_memory(self) -> None:
        while not self._stop.wait(0.02):
            self.rss_bytes = max(self.rss_bytes, self._server.rss())

    @property
    def growth_bytes(self) -> int:
        """How much memory the server took at most, beyond what it had before."""
        return max(0, self.rss_bytes - self.before_bytes)

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        time.sleep(0.05)
        self._stop.set()
        self._thread.join()
        output, _unused = self._process.communicate("\n")
        if error is None:
            self.health_s = json.loads(output)
