"""Names in an object store (S3, Google Cloud, Azure), with the methods of `Path` that results need.

An object is written completely or not at all, so writers need no lock and no temporary name.
Credentials and endpoints come from the environment, as the tools of the providers expect them.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from matchserve.errors import InvalidParameter, StorageUnavailable
from matchserve.libraries import import_obstore

_URL = re.compile(r"(?:s3|gs|az|abfss?)://[^/]+(/.*)?|file:///.+")

MAX_RETRIES = 6
RETRY_S = 30.0
"""Maximum time of all tries of one request."""


def is_url(text: str) -> bool:
    """Return whether a text names an object store rather than a folder."""
    return "://" in text


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object, or the common beginning of several: `key` below the address `url`."""

    url: str
    key: str = ""

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise InvalidParameter(
                f"{self.url!r} is not an address such as s3://bucket/name, gs:// or az://"
            )

    def __truediv__(self, part: str) -> ObjectPath:
        return ObjectPath(self.url, f"{self.key}/{part}" if self.key else part)

    def __str__(self) -> str:
        return f"{self.url.rstrip('/')}/{self.key}" if self.key else self.url

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The name without its last part."""
        return ObjectPath(self.url, self.key.rpartition("/")[0])

    def is_file(self) -> bool:
        """Return whether the object exists.

        Raises:
            StorageUnavailable: the store does not answer.
        """
        try:
            self._call("head")
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Return the object.

        Raises:
            FileNotFoundError: there is none.
            StorageUnavailable: the store does not answer.
        """
        return bytes(self._call("get"))

    def write_bytes(self, data: bytes) -> None:
        """Write the object, completely or not at all.

        Raises:
            StorageUnavailable: the store does not answer.
        """
        self._call("put", data)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object.

        Raises:
            FileNotFoundError: there is none, and `missing_ok` is False.
            StorageUnavailable: the store does not answer.
        """
        try:
            self._call("delete")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _call(self, method: str, *arguments: Any) -> Any:
        obstore = import_obstore()
        try:
            result = getattr(obstore, method)(_store(self.url), self.key, *arguments)
            # The data of an object is still on its way, and may be cut off.
            return result.bytes() if method == "get" else result
        except FileNotFoundError:
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            # The rest of the message is a dump of the library's internal state.
            reason = str(error).partition("\n")[0][:300]
            raise StorageUnavailable(f"cannot {method} {self}: {reason}") from error


Place = Path | ObjectPath
"""Where results lie: a folder or file, or a name in an object store."""


def as_place(text: str) -> Place:
    """Return the place that a text names.

    Raises:
        InvalidParameter: the text is an address of an unknown kind.
    """
    return ObjectPath(text) if is_url(text) else Path(text)


@functools.cache
def _store(url: str) -> Any:
    """Open a store; each process opens it once."""
    retry = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
    # Without `client_options`, which would hide those of the environment.
    options: dict[str, Any] = (
        {"mkdir": True} if url.startswith("file:") else {"retry_config": retry}
    )
    try:
        return import_obstore().store.from_url(url, **options)
    except (import_obstore().exceptions.BaseError, ValueError) as error:
        raise InvalidParameter(f"cannot open {url}: {str(error).partition(chr(10))[0]}") from error
