"""`matchserve worker`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from matchserve.cli.options import ModelsDir, ProviderOption, setting_option
from matchserve.cli.output import say
from matchserve.errors import InvalidParameter
from matchserve.settings import load_settings


def worker(
    *,
    data_dir: Annotated[Path | None, setting_option("data_dir")] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes of a job.", show_default="half of the cores"),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when no job waits.")
    ] = False,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
) -> None:
    """Run jobs of a service that shares the data folder, until SIGTERM or Ctrl-C."""
    settings = load_settings(
        data_dir=data_dir, job_cores=cores, models_dir=models_dir, provider=provider
    )
    from matchserve.jobs.process import lower_session
    from matchserve.jobs.service import JobService

    if settings.data_dir is None:
        raise InvalidParameter("name the folder of jobs with --data-dir or MATCHSERVE_DATA_DIR")
    lower_session(settings.job_niceness)
    runner = JobService(settings, settings.data_dir).runner()
    thread = threading.Thread(target=runner.run, kwargs={"until_idle": until_idle})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: runner.stop())
    say(f"waiting for jobs in {settings.data_dir}")
    thread.start()
    thread.join()
