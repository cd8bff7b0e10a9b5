"""Every setting of the service: an environment variable `MATCHSERVE_*`, or a flag of `serve`.

This is the only reader of the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from matchserve.engine.admission import Places
from matchserve.engine.batcher import BatchPolicy
from matchserve.errors import InvalidParameter
from matchserve.hardware import available_cpus, memory_limit_bytes
from matchserve.limits import Limits
from matchserve.models.providers import ProviderChoice
from matchserve.models.registry import DEFAULT_MODEL

PREFIX = "MATCHSERVE_"
# Measured: finding keypoints takes about 0.24 GB a megapixel.
BYTES_PER_MEGAPIXEL = 240_000_000
MEMORY_SHARE = 0.6

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Settings(BaseSettings):
    """How the service runs; unset places and threads follow the machine or the container."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    workers: Positive = 1
    """Processes; one uses every core already, two survive the death of one."""
    log_format: Literal["auto", "json", "text"] = "auto"

    models_dir: Path | None = None
    default_model: str = DEFAULT_MODEL
    provider: ProviderChoice = "auto"
    strict: bool = False
    """Refuse to start when any model is broken; otherwise the others are served."""

    max_image_bytes: Positive = 20_000_000
    max_body_bytes: Positive = 42_000_000
    max_inflight_bytes: Positive = 512_000_000
    """Bytes of all request bodies held at once."""
    max_pixels: Positive = 50_000_000
    max_side: Positive = 16_384
    min_side: Positive = 16
    max_keypoints: Positive = 8192
    max_patches: Positive = 16_384
    working_side: Annotated[int, Field(ge=16)] = 2048
    """Images are reduced to this side unless the request says otherwise; coordinates are not."""

    running: Positive | None = None
    waiting: Annotated[int, Field(ge=0)] | None = None
    megapixels: Annotated[float, Field(gt=0)] | None = None
    threads: Positive | None = None
    lone_request_threads: Positive | None = None
    """Threads of a request while it is the only one; 1 keeps every request on one core."""
    batch_patches: Positive = 64
    cache_bytes: Annotated[int, Field(ge=0)] = 64_000_000

    deadline_s: Seconds = 30.0
    receive_s: Seconds = 15.0
    send_s: Seconds = 30.0
    keep_alive_s: Positive = 5
    drain_s: Positive = 30
    max_connections: Positive = 1000

    api_keys: SecretStr | None = None
    """Comma-separated; with any key set, every request to /v1 and /v2 needs one."""
    api_keys_file: Path | None = None
    """One key a line."""
    requests_per_s: Annotated[float, Field(ge=0)] = 0.0
    """For each key, or each address when there are no keys; 0 for no limit."""
    request_burst: Positive = 10

    def limits(self) -> Limits:
        """What one request may ask for."""
        return Limits(
            max_image_bytes=self.max_image_bytes,
            max_pixels=self.max_pixels,
            max_side=self.max_side,
            min_side=self.min_side,
            max_keypoints=self.max_keypoints,
        )

    def cpus(self) -> int:
        """Cores of one worker process."""
        return self.threads or max(1, available_cpus() // self.workers)

    def lone_threads(self) -> int:
        """Cores of a request while it is the only one."""
        return self.lone_request_threads or self.cpus()

    def places(self) -> Places:
        """How many requests run and wait, and how many megapixels of images run, per worker."""
        running = self.running or self.cpus()
        fitting = MEMORY_SHARE * memory_limit_bytes() / BYTES_PER_MEGAPIXEL / self.workers
        return Places(
            running=running,
            waiting=4 * running if self.waiting is None else self.waiting,
            megapixels=self.megapixels or fitting,
        )

    def batch_policy(self) -> BatchPolicy:
        """How patches are batched."""
        return BatchPolicy(self.cpus(), self.batch_patches, stuck_s=0.5 * self.deadline_s)

    def keys(self) -> tuple[str, ...]:
        """The API keys, of the variable and of the file.

        Raises:
            InvalidParameter: the file cannot be read.
        """
        text = self.api_keys.get_secret_value().replace(",", "\n") if self.api_keys else ""
        if self.api_keys_file:
            try:
                text += "\n" + self.api_keys_file.read_text(encoding="utf-8")
            except OSError as error:
                raise InvalidParameter(f"cannot read {PREFIX}API_KEYS_FILE") from error
        return tuple(line.strip() for line in text.splitlines() if line.strip())


def load_settings(**overrides: Any) -> Settings:
    """Settings of the environment, with `overrides` that are not None on top.

    Raises:
        InvalidParameter: a value is out of its range, or a variable is not a setting.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and n.upper() not in known)
    if unknown:
        raise InvalidParameter(f"not a setting: {', '.join(unknown)}")
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidParameter(f"{PREFIX}{name.upper()}: {first['msg']}") from error


def to_environment(settings: Settings) -> dict[str, str]:
    """Variables from which a worker process builds the same settings."""
    values: dict[str, str] = {}
    for name, value in settings:
        if isinstance(value, SecretStr):
            values[PREFIX + name.upper()] = value.get_secret_value()
        elif value is not None:
            values[PREFIX + name.upper()] = str(value)
    return values
