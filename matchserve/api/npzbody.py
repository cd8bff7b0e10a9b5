"""Features in an npz archive that somebody sent: bounded before anything of it is unpacked."""

from __future__ import annotations

import io
import zipfile

from matchserve.api.body import too_large
from matchserve.encoding import features_from_npz
from matchserve.errors import InvalidParameter, MatchServeError
from matchserve.types import Features

MAX_ARRAYS = 32


def features_of_npz(data: bytes, what: str, max_bytes: int) -> Features:
    """The features in `data`, which may unpack to no more than `max_bytes`.

    Raises:
        PayloadTooLarge: it would unpack to more; 400 kB of zeros can be 400 MB.
        InvalidParameter: it is not such an archive, or its arrays do not fit together.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > max_bytes:
            raise too_large(unpacked, max_bytes)
        if len(members) > MAX_ARRAYS:
            raise InvalidParameter(f"{what} holds more than {MAX_ARRAYS} arrays")
        return features_from_npz(data)
    except MatchServeError:
        raise
    except Exception as error:
        # zlib, zipfile and numpy each let out errors of their own kinds for damaged archives.
        raise InvalidParameter(f"{what} is not an npz archive of features") from error
