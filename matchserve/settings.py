"""All settings of the service: environment variables `MATCHSERVE_*`, or options of `serve`.

Only this module reads the environment. Defaults come from `defaults` and `limits`; schemas, help
texts, `/info` and the documentation take limits from here.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from matchserve import defaults
from matchserve.engine.admission import Slots
from matchserve.engine.batcher import BatchPolicy
from matchserve.errors import InvalidParameter
from matchserve.files import read_regular_file
from matchserve.hardware import available_cpus, memory_limit_bytes
from matchserve.limits import (
    DEFAULT_QUOTAS,
    MAX_BATCH_IMAGES,
    MIN_WORKING_SIDE,
    SERVICE_LIMITS,
    Limits,
    Quotas,
)
from matchserve.models.execution import BUFFERS_PER_DEVICE, CPU_BATCH, DeviceOptions
from matchserve.models.providers import ProviderChoice

PREFIX = "MATCHSERVE_"

_log = logging.getLogger(__name__)

# Measured: finding keypoints needs about 0.24 GB per megapixel.
BYTES_PER_MEGAPIXEL = 240_000_000
MEMORY_SHARE = 0.6
MAX_KEYS_BYTES = 1_000_000

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Settings(BaseSettings):
    """How the service runs; unset numbers of slots and threads follow the machine or container."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 for a free one."""
    workers: Positive = 1
    """Number of worker processes. One uses every core; with two, one can be replaced while the
    other serves."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """Format of log lines; `auto` writes text to a terminal and JSON otherwise."""

    models_dir: Path | None = None
    """Folder of models. Setting this hides the shipped models; set MATCHSERVE_DEFAULT_MODEL as
    well."""
    default_model: str = defaults.MODEL
    """Model used when a request does not name one."""
    provider: ProviderChoice = "auto"
    """Device that runs the models. A device that is named but not usable is an error."""
    devices: Annotated[str, Field(pattern=r"^\d+(,\d+)*$")] = "0"
    """Numbers of the devices that run the models, separated by commas, if the provider has
    devices."""
    tensorrt_cache: Path | None = None
    """Folder in which TensorRT keeps the engines it builds; without it, each start builds them."""
    strict: bool = False
    """Refuse to start if any model is broken; otherwise the other models are served."""

    max_image_bytes: Positive = SERVICE_LIMITS.max_image_bytes
    """Maximum size of an encoded image."""
    max_body_bytes: Positive = 42_000_000
    """Maximum size of a request body."""
    max_inflight_bytes: Positive = 512_000_000
    """Maximum size of all request bodies that are held at the same time; one client may hold
    half of it."""
    max_pixels: Positive = SERVICE_LIMITS.max_pixels
    """Maximum number of pixels of an image."""
    max_decode_bytes: Positive = 210_000_000
    """Maximum memory that decoding one image may take: WebP images up to 13 megapixels, PNG
    images in colour up to 38, progressive JPEG images up to 25 to 40."""
    max_side: Positive = SERVICE_LIMITS.max_side
    """Maximum width and height of an image."""
    min_side: Positive = SERVICE_LIMITS.min_side
    """Minimum width and height of an image."""
    max_keypoints: Positive = SERVICE_LIMITS.max_keypoints
    """Maximum number of keypoints per image that a request may ask for."""
    max_patches: Positive = 16_384
    """Maximum number of patches in one request."""
    max_batch_images: Annotated[int, Field(ge=2, le=MAX_BATCH_IMAGES)] = 16
    """Maximum number of images in a request to /v1/match/batch."""
    max_batch_pairs: Positive = 32
    """Maximum number of pairs in a request to /v1/match/batch."""
    working_side: Annotated[int, Field(ge=0)] = defaults.MAX_SIDE
    """Longest side of the copy on which keypoints are found, if the request does not set
    `max_side`; 0 for the full size. Coordinates are always those of the image as sent."""

    max_running: Positive | None = None
    """Maximum number of running requests per worker; by default the number of its cores, and
    two more for each device of a named provider."""
    max_waiting: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of waiting requests per worker; by default four per running request."""
    max_running_megapixels: Annotated[float, Field(gt=0)] | None = None
    """Maximum number of megapixels of running requests per worker; by default what fits in 60 %
    of the memory."""
    threads: Positive | None = None
    """Number of threads per worker; by default the available cores divided by the workers."""
    lone_request_threads: Positive | None = None
    """Number of threads of a request while it is the only one; 1 keeps every request on one
    core. By default all threads of the worker."""
    batch_patches: Positive | None = None
    """Maximum number of patches in one run of a model; by default 64 on the CPU and 2048 on a
    device."""
    cache_bytes: Annotated[int, Field(ge=0)] = 64_000_000
    """Size of the cache of features of images seen before; 0 for none."""

    store_bytes: Annotated[int, Field(ge=0)] = 128_000_000
    """Size of the features that clients may store to name them by id; 0 for none. Several workers
    store none, because each would have its own."""
    store_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    """Time after which stored features that were not used are dropped."""

    deadline_s: Seconds = 30.0
    """Maximum time from a request's complete head to its response, with the time to receive its
    body."""
    receive_s: Seconds = 15.0
    """Maximum time to receive a request."""
    send_s: Seconds = 30.0
    """Maximum time that a client may pause while it reads the response."""
    keep_alive_s: Positive = 5
    """Time after which an idle connection is closed."""
    drain_s: Positive = 30
    """Maximum time to finish admitted requests when the service shuts down."""
    max_connections: Positive = 1000
    """Maximum number of open connections per worker."""
    max_connections_per_address: Positive | None = None
    """Maximum number of open connections of one address per worker; by default a quarter of all.
    Trusted proxies have no such limit."""
    trusted_proxies: str = ""
    """Addresses or networks of proxies, separated by commas, whose `X-Forwarded-For` header names
    the client; by default no header is trusted."""

    data_dir: Path | None = None
    """Folder for uploaded collections and jobs; without it, the service has neither."""
    sources: str = ""
    """Folders on the server, separated by commas, whose images a job may read."""
    job_cores: Annotated[int, Field(ge=0)] | None = None
    """Number of processes of a job; by default half of the cores of a worker. With 0 jobs wait for
    `matchserve worker`."""
    job_niceness: Annotated[int, Field(ge=0, le=19)] = 19
    """Niceness of the processes of jobs: the higher, the less they slow requests. With 19 they only
    use processor time that is left over."""
    job_hours: Annotated[float, Field(gt=0, le=1000)] = DEFAULT_QUOTAS.job_hours
    """Maximum time of a job."""
    quota_collections: Positive = DEFAULT_QUOTAS.collections
    """Maximum number of collections per API key."""
    quota_images: Positive = DEFAULT_QUOTAS.images
    """Maximum number of images in all collections of an API key."""
    quota_bytes: Positive = DEFAULT_QUOTAS.bytes
    """Maximum size of all uploaded images of an API key."""
    quota_queued_jobs: Positive = DEFAULT_QUOTAS.queued_jobs
    """Maximum number of queued jobs per API key; one runs at a time."""

    cors_origins: str = ""
    """Origins whose pages may call the service from a browser, separated by commas, such as
    `https://example.org`; `*` for every page, and by default none."""
    api_keys: SecretStr | None = None
    """API keys, separated by commas. If there are any, requests to /v1 and /v2 need one."""
    api_keys_file: Path | None = None
    """File with one API key per line; lines that begin with `#` are comments."""
    requests_per_s: Annotated[float, Field(ge=0)] = 0.0
    """Maximum rate of requests per API key, or per address if there are no keys; 0 for no
    limit."""
    request_burst: Positive = 10
    """Number of requests that may exceed the rate at once."""

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: str) -> str:
        for network in _listed(value):
            ipaddress.ip_network(network, strict=False)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        for origin in _listed(value):
            if origin != "*" and not re.fullmatch(r"https?://[^/\s@?#]+", origin):
                raise ValueError(f"{origin!r} is not an origin such as https://example.org")
        return value

    @field_validator("working_side")
    @classmethod
    def _check_working_side(cls, value: int) -> int:
        if 0 < value < MIN_WORKING_SIDE:
            raise ValueError(f"must be 0 or at least {MIN_WORKING_SIDE}")
        return value

    def limits(self) -> Limits:
        """Return the limits of one request."""
        return Limits(
            max_image_bytes=self.max_image_bytes,
            max_pixels=self.max_pixels,
            max_side=self.max_side,
            min_side=self.min_side,
            max_keypoints=self.max_keypoints,
        )

    def quotas(self) -> Quotas:
        """Return what one client may hold."""
        return Quotas(
            collections=self.quota_collections,
            images=self.quota_images,
            bytes=self.quota_bytes,
            queued_jobs=self.quota_queued_jobs,
            job_hours=self.job_hours,
        )

    def source_folders(self) -> tuple[Path, ...]:
        """Return the folders whose images a job may read."""
        return tuple(Path(part.strip()) for part in self.sources.split(",") if part.strip())

    def cores_of_jobs(self) -> int:
        """Return the number of processes of a job; 0 if this service runs none."""
        return max(1, self.cpus() // 2) if self.job_cores is None else self.job_cores

    def cpus(self) -> int:
        """Return the number of cores of one worker process."""
        return self.threads or max(1, available_cpus() // self.workers)

    def lone_threads(self) -> int:
        """Return the number of threads of a request while it is the only one."""
        return self.lone_request_threads or self.cpus()

    def device_options(self) -> DeviceOptions:
        """Return which devices run the models, and how."""
        numbers = tuple(dict.fromkeys(int(number) for number in self.devices.split(",")))
        return DeviceOptions(numbers, self.batch_patches, self.tensorrt_cache)

    def slots(self) -> Slots:
        """Return how many requests and megapixels may run and wait in one worker.

        A request that waits for a named device needs no core: as many more may run as batches do.
        """
        on_devices = 0
        if self.provider in ("cuda", "tensorrt"):
            on_devices = BUFFERS_PER_DEVICE * len(self.device_options().numbers)
        running = self.max_running or self.cpus() + on_devices
        fitting = MEMORY_SHARE * memory_limit_bytes() / BYTES_PER_MEGAPIXEL / self.workers
        return Slots(
            running=running,
            waiting=4 * running if self.max_waiting is None else self.max_waiting,
            megapixels=self.max_running_megapixels or fitting,
        )

    def batch_policy(self) -> BatchPolicy:
        """Return how patches are batched."""
        batch = self.batch_patches or CPU_BATCH
        return BatchPolicy(self.cpus(), batch, stuck_s=0.5 * self.deadline_s)

    def proxies(self) -> tuple[str, ...]:
        """Return the addresses and networks of trusted proxies."""
        return _listed(self.trusted_proxies)

    def origins(self) -> tuple[str, ...]:
        """Return the origins whose pages may call the service."""
        return _listed(self.cors_origins)

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the variable and of the file; lines with `#` are comments.

        Raises:
            InvalidParameter: the file cannot be read, or keys are asked for and there are none: a
                service that is meant to be closed must not be open.
        """
        keys: list[str] = []
        if self.api_keys is not None:
            text = self.api_keys.get_secret_value()
            keys += _nonempty(text.split(","), f"{PREFIX}API_KEYS")
        if self.api_keys_file is not None:
            try:
                text = read_regular_file(self.api_keys_file, MAX_KEYS_BYTES).decode("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not UTF-8 text"
                raise InvalidParameter(f"cannot read {PREFIX}API_KEYS_FILE: {reason}") from error
            lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
            keys += _nonempty(lines, f"{PREFIX}API_KEYS_FILE")
        return tuple(keys)


def _listed(text: str) -> tuple[str, ...]:
    """Return the parts of a text that are separated by commas."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _nonempty(texts: Iterable[str], name: str) -> list[str]:
    keys = [text.strip() for text in texts if text.strip()]
    if not keys:
        raise InvalidParameter(f"{name} has no key; remove the setting to serve without keys")
    return keys


RENAMED = {
    "RUNNING": "MAX_RUNNING",
    "WAITING": "MAX_WAITING",
    "MEGAPIXELS": "MAX_RUNNING_MEGAPIXELS",
}
"""Variables of earlier versions and their new names; version 0.2 will refuse the old names."""


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment; `overrides` that are not None replace them.

    Raises:
        InvalidParameter: a value is out of its range, or a variable is not a setting.
    """
    _rename_variables()
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


def _rename_variables() -> None:
    """Set the new names of variables that were set by their old names, and log a warning."""
    for old, new in RENAMED.items():
        value = os.environ.pop(PREFIX + old, None)
        if value is not None:
            os.environ.setdefault(PREFIX + new, value)
            _log.warning("%s%s was renamed to %s%s", PREFIX, old, PREFIX, new)


def to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables from which a worker process builds the same settings."""
    values: dict[str, str] = {}
    for name, value in settings:
        if isinstance(value, SecretStr):
            values[PREFIX + name.upper()] = value.get_secret_value()
        elif value is not None:
            values[PREFIX + name.upper()] = str(value)
    return values
