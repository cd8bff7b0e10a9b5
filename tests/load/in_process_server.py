"""`python -m tests.load.in_process_server`: the service with decoders in its own process.

Nothing can stop such a decoder: it is only there to measure what the other process costs.
"""

from __future__ import annotations

from typing import Any

from matchserve import cli
from matchserve.api import serve as serving
from matchserve.api.app import create_app
from matchserve.settings import Settings
from matchserve.vision.decode import InProcessDecoder


def app_of(settings: Settings) -> Any:
    """Create an application that decodes on the threads of its requests."""
    app = create_app(settings)
    app.state.service.model("").matcher.describer.decoder = InProcessDecoder(settings.limits())
    return app


if __name__ == "__main__":
    vars(serving)["create_app"] = app_of
    cli.main()
