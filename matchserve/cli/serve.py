"""`matchserve serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from matchserve.cli.options import ModelsDir, ProviderOption, setting_option
from matchserve.settings import load_settings


def serve(
    *,
    host: Annotated[str | None, setting_option("host")] = None,
    port: Annotated[int | None, setting_option("port")] = None,
    workers: Annotated[int | None, setting_option("workers")] = None,
    default_model: Annotated[str | None, setting_option("default_model")] = None,
    data_dir: Annotated[Path | None, setting_option("data_dir")] = None,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse to start if any model is broken.")
    ] = None,
) -> None:
    """Serve matches over HTTP; further settings are environment variables MATCHSERVE_*."""
    settings = load_settings(
        host=host,
        port=port,
        workers=workers,
        default_model=default_model,
        data_dir=data_dir,
        models_dir=models_dir,
        provider=provider,
        strict=strict,
    )
    # The libraries of the service take a second to import, and no other command needs them.
    from matchserve.api.serve import serve as run_service

    raise typer.Exit(run_service(settings))
