"""`python -m tests.load.leaky_server`: the service with a leak, which the soak test must find."""

from __future__ import annotations

from typing import Any

from matchserve import cli
from matchserve.api import serve as serving
from matchserve.api.app import create_app
from matchserve.settings import Settings

LEAK_BYTES = 50_000
kept: list[bytearray] = []


def leaky_app(settings: Settings) -> Any:
    """Create an application that keeps some memory of each match."""
    app = create_app(settings)
    matcher = app.state.service.model("").matcher
    match = matcher.match

    def match_and_keep(*args: Any, **kwargs: Any) -> Any:
        kept.append(bytearray(b"x") * LEAK_BYTES)
        return match(*args, **kwargs)

    matcher.match = match_and_keep
    return app


if __name__ == "__main__":
    vars(serving)["create_app"] = leaky_app
    cli.main()
