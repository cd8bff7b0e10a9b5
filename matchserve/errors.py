"""Everything that can go wrong, as types.

MatchServeError
├── ImageError                 the bytes or array sent as an image
│   ├── EmptyImage             zero bytes
│   ├── UnsupportedFormat      not JPEG, PNG, WebP or TIFF, or a pixel type we do not read
│   ├── CorruptImage           the format is right, the content is damaged
│   ├── ImageTooLarge          more bytes, pixels or a longer side than allowed
│   └── ImageTooSmall          shorter than a descriptor's patch
├── RequestError               what was asked for
│   ├── InvalidParameter       a value out of its range
│   ├── UnknownModel           no model of that name
│   ├── MissingInput           a file that is not there
│   ├── FeatureMismatch        features of different models cannot be matched
│   └── PayloadTooLarge        the whole request is too big
├── CapacityError              the machine is busy
│   ├── Overloaded             all running and waiting places are taken
│   ├── DeadlineExceeded       the answer would come too late
│   └── ShuttingDown           the service is draining
└── ModelError                 a descriptor model
    ├── ModelMissing           files that a card names are not there
    ├── ModelCorrupt           a checksum, the graph or the golden descriptors disagree
    ├── ModelMismatch          inputs, outputs or patch specification are not as the card says
    ├── ProviderUnavailable    the asked-for device cannot run it
    └── InferenceFailed        the model raised, or answered with NaN

Each class carries `code` (stable, for machines), `status` (HTTP) and `exit_code` (command line).
"""

from __future__ import annotations

from typing import ClassVar


class MatchServeError(Exception):
    """Base of every error that crosses a module border."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        limit: float | None = None,
        value: float | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.limit = limit
        self.value = value
        self.retry_after_s = retry_after_s


class ImageError(MatchServeError):
    """The image cannot be used."""

    code, status, exit_code = "invalid_image", 422, 65


class EmptyImage(ImageError):
    """No bytes were sent."""

    code = "empty_image"


class UnsupportedFormat(ImageError):
    """Not a format or pixel type that is read here."""

    code, status = "unsupported_format", 415


class CorruptImage(ImageError):
    """The header was readable, the content is damaged or cut off."""

    code = "corrupt_image"


class ImageTooLarge(ImageError):
    """More bytes, pixels or a longer side than the limits allow."""

    code, status = "image_too_large", 413


class ImageTooSmall(ImageError):
    """Too small to hold a keypoint."""

    code = "image_too_small"


class RequestError(MatchServeError):
    """The request asks for something that cannot be done."""

    code, status, exit_code = "invalid_request", 400, 2


class InvalidParameter(RequestError):
    """A parameter is out of its range or of the wrong kind."""

    code, status = "invalid_parameter", 422


class UnknownModel(RequestError):
    """No model of that name is installed."""

    code, status = "unknown_model", 404


class MissingInput(RequestError):
    """A file named on the command line or in a call cannot be read."""

    code, status, exit_code = "missing_input", 404, 66


class FeatureMismatch(RequestError):
    """Descriptors of different models do not live in one space."""

    code, status = "feature_mismatch", 422


class PayloadTooLarge(RequestError):
    """The request body is larger than allowed."""

    code, status = "payload_too_large", 413


class CapacityError(MatchServeError):
    """The service cannot take this now."""

    code, status, exit_code = "unavailable", 503, 75


class Overloaded(CapacityError):
    """All running and waiting places are taken."""

    code, status = "overloaded", 429


class DeadlineExceeded(CapacityError):
    """The request ran out of time."""

    code, status = "deadline_exceeded", 504


class ShuttingDown(CapacityError):
    """The service is draining and takes nothing new."""

    code = "shutting_down"


class ModelError(MatchServeError):
    """A descriptor model cannot be used."""

    code, status, exit_code = "model_error", 503, 78


class ModelMissing(ModelError):
    """A file of the model is absent."""

    code = "model_missing"


class ModelCorrupt(ModelError):
    """The model's bytes are not what its card promises."""

    code = "model_corrupt"


class ModelMismatch(ModelError):
    """The graph's inputs or outputs are not what its card promises."""

    code = "model_mismatch"


class ProviderUnavailable(ModelError):
    """The requested device or library is not available."""

    code = "provider_unavailable"


class InferenceFailed(ModelError):
    """The model failed while running."""

    code = "inference_failed"
