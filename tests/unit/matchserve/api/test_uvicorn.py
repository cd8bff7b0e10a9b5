"""The private parts of uvicorn that the service uses are as it expects.

`api/protocol.py` and `api/serve.py` extend classes that uvicorn does not document. This test fails
when an update changes them; then check both modules before raising the bound in pyproject.toml.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import uvicorn
from uvicorn import _subprocess
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import multiprocess

ROOT = Path(__file__).resolve().parents[4]


def test_uvicorn_is_bounded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = (m[1] for r in project["dependencies"] if (m := re.match(r"uvicorn.*<0\.(\d+)$", r)))
    assert int(uvicorn.__version__.split(".")[1]) < int(bound)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("connection_made", ["self", "transport"]),
        ("data_received", ["self", "data"]),
        ("connection_lost", ["self", "exc"]),
        ("on_response_complete", ["self"]),
        ("pause_writing", ["self"]),
        ("resume_writing", ["self"]),
    ],
)
def test_the_http_protocol_has_the_overridden_methods(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(H11Protocol, method)).parameters) == parameters


def test_the_http_protocol_has_the_used_attributes() -> None:
    source = inspect.getsource(H11Protocol)
    for attribute in ("self.conn", "self.transport", "self.loop"):
        assert attribute in source


def test_the_supervisor_has_the_used_parts() -> None:
    for name in ("signal_queue", "processes", "join_all", "run"):
        assert name in inspect.getsource(multiprocess.Multiprocess)
    for name in ("_server", "server", "target", "process", "exitcode"):
        assert name in inspect.getsource(multiprocess.Process)
    assert "spawn" in vars(_subprocess)
    assert "spawn.Process" in inspect.getsource(_subprocess)


def test_the_server_has_the_overridden_methods() -> None:
    assert list(inspect.signature(uvicorn.Server.handle_exit).parameters) == [
        "self",
        "sig",
        "frame",
    ]
    assert "capture_signals" in vars(uvicorn.Server)
    assert "loaded_app" in inspect.getsource(uvicorn.Config)
