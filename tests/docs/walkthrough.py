"""Runs the commands of pages as a reader would: in order, in one folder, with a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.blocks import ROOT, Block, blocks, lines
from tests.docs.commands import GUIDE, INSTEAD, NOT_RUN, README, SMALLER
from tests.server_process import ServerProcess

TIMEOUT_S = 300
# What the pages use of the clone, in whose root a reader works.
CLONE = ("Makefile", "pyproject.toml", "constraints.txt", "docs", "examples", "models")
# A command that starts the service, after variables such as MATCHSERVE_DEADLINE_S=10.
SERVE = re.compile(r"^((?:MATCHSERVE_\w+=\S+ )*)matchserve serve(.*)$")


class Walkthrough:
    """One folder, its files, and the service that was started last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: ServerProcess | None = None
        (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
        for name in CLONE:
            (folder / name).symlink_to(ROOT / name)

    def follow(self, page: str) -> None:
        """Run every block of a page."""
        elsewhere = lines(GUIDE) if page == README else set()
        for block in blocks(page):
            if block.language == "sh":
                for line in block.lines():
                    if line not in elsewhere:
                        self._shell(block, line)
            elif block.language == "python":
                self._run(block, [sys.executable, "-c", self._with_port(block.text)])

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _shell(self, block: Block, line: str) -> None:
        if line in NOT_RUN:
            return
        serve = SERVE.match(line)
        if serve:
            self._serve(serve[1], serve[2])
            return
        command = INSTEAD.get(line, f"{line} {SMALLER.get(line, '')}")
        self._run(block, ["bash", "-euo", "pipefail", "-c", self._with_port(command)])

    def _serve(self, variables: str, flags: str) -> None:
        self.stop()
        settings = dict(item.split("=", 1) for item in variables.split())
        options = re.sub(r"--port \d+", "", flags).split()
        log = self.folder / "server.log"
        self.server = ServerProcess(log, options=options, variables=settings, cwd=self.folder)
        self.server.wait_until_alive()

    def _with_port(self, text: str) -> str:
        """Send requests to the running service; start one if the page expects one."""
        if "localhost:8000" not in text:
            return text
        if self.server is None:
            self._serve("", "")
        assert self.server is not None
        return text.replace("localhost:8000", f"127.0.0.1:{self.server.port}")

    def _run(self, block: Block, command: list[str]) -> None:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("MATCHSERVE_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CURL_HOME": str(self.folder),
        }
        start = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
        sys.stdout.write(f"{time.monotonic() - start:6.1f} s  {command[-1]}\n")
        output = (done.stdout[-2000:], done.stderr[-3000:])
        assert done.returncode == 0, (block.page, command[-1], *output)
