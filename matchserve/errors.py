"""The error types of matchserve.

MatchServeError
├── ImageError                 an image cannot be used
│   ├── EmptyImage             it has zero bytes
│   ├── UnsupportedFormat      not JPEG, PNG, WebP or TIFF, or an unsupported pixel type
│   ├── CorruptImage           the header is readable, but the content is damaged
│   ├── ImageTooLarge          too many bytes or pixels, or a side too long
│   └── ImageTooSmall          a side too short to hold a keypoint
├── RequestError               a request cannot be fulfilled
│   ├── InvalidParameter       a value is out of its range or of the wrong type
│   ├── UnknownModel           there is no model of that name
│   ├── UnknownFeatures        no features of that id are stored
│   ├── MissingInput           a file cannot be read
│   ├── FeatureMismatch        features of different models cannot be matched
│   ├── PayloadTooLarge        the request body is too large
│   ├── CollectionsDisabled    the service has no folder for collections and jobs
│   ├── UnknownCollection      there is no collection of that name
│   ├── UnknownImage           there is no image of that name in a collection
│   ├── UnknownSource          a job names a folder that the service may not read
│   ├── UnknownJob             there is no such job, or it has no such result
│   ├── ImageExists            another image of that name was uploaded before
│   ├── CollectionBusy         a job is using the collection
│   └── IdempotencyMismatch    an idempotency key was used with another body before
├── CapacityError              the service cannot handle the request now
│   ├── Overloaded             too many requests run and wait
│   ├── DeadlineExceeded       the request took too long
│   ├── QuotaExceeded          a client would hold more than it may
│   └── ShuttingDown           the service is shutting down
├── ModelError                 a model cannot be used
│   ├── ModelMissing           a file of the model is missing
│   ├── ModelCorrupt           a file of the model is damaged
│   ├── ModelMismatch          the model contradicts its card
│   ├── ProviderUnavailable    the requested device or library is not available
│   └── InferenceFailed        the model failed while running
│       ├── DeviceOutOfMemory  the device has no memory for the smallest batch
│       └── DeviceLost         the device failed and cannot be used again by this process
├── WorkspaceError             the workspace of a collection cannot be used
│   ├── StorageFull            there is no room to write
│   ├── StorageDamaged         a stored file is damaged
│   ├── StorageUnavailable     an object store does not answer
│   ├── WorkspaceMismatch      it was made with another model or other options
│   └── WorkspaceBusy          another process is working in it
├── WorkerLost                 a worker process was killed again and again
└── ReconstructionFailed       no 3D model could be made from a collection

Each class has a `code` (stable, for programs), a `status` (HTTP) and an `exit_code` (command
line).
"""

from __future__ import annotations

from typing import ClassVar


class MatchServeError(Exception):
    """Base class of all errors that callers should expect."""

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
    """The image has an unsupported format or pixel type."""

    code, status = "unsupported_format", 415


class CorruptImage(ImageError):
    """The header is readable, but the content is damaged or cut off."""

    code = "corrupt_image"


class ImageTooLarge(ImageError):
    """The image exceeds the limit on bytes, pixels or sides."""

    code, status = "image_too_large", 413


class ImageTooSmall(ImageError):
    """The image is too small to hold a keypoint."""

    code = "image_too_small"


class RequestError(MatchServeError):
    """The request cannot be fulfilled."""

    code, status, exit_code = "invalid_request", 400, 2


class InvalidParameter(RequestError):
    """A parameter is out of its range or of the wrong type."""

    code, status = "invalid_parameter", 422


class UnknownModel(RequestError):
    """There is no model of that name."""

    code, status = "unknown_model", 404


class UnknownFeatures(RequestError):
    """No features of that id are stored for this client."""

    code, status = "unknown_features", 404


class MissingInput(RequestError):
    """A file named on the command line or in a call cannot be read."""

    code, status, exit_code = "missing_input", 404, 66


class FeatureMismatch(RequestError):
    """Features of different models cannot be matched."""

    code, status = "feature_mismatch", 422


class PayloadTooLarge(RequestError):
    """The request body is larger than allowed."""

    code, status = "payload_too_large", 413


class CollectionsDisabled(RequestError):
    """The service has no folder for collections and jobs."""

    code, status = "collections_disabled", 404


class UnknownCollection(RequestError):
    """There is no collection of that name."""

    code, status = "unknown_collection", 404


class UnknownImage(RequestError):
    """There is no image of that name in the collection."""

    code, status = "unknown_image", 404


class UnknownSource(RequestError):
    """A job names a folder that does not exist or that the service may not read."""

    code, status = "unknown_source", 404


class UnknownJob(RequestError):
    """There is no such job, or it has no such result."""

    code, status = "unknown_job", 404


class ImageExists(RequestError):
    """Another image of that name was uploaded before."""

    code, status = "image_exists", 409


class CollectionBusy(RequestError):
    """A job is using the collection."""

    code, status = "collection_busy", 409


class IdempotencyMismatch(RequestError):
    """An idempotency key was used with another body before."""

    code, status = "idempotency_mismatch", 422


class CapacityError(MatchServeError):
    """The service cannot handle the request now."""

    code, status, exit_code = "unavailable", 503, 75


class Overloaded(CapacityError):
    """Too many requests run and wait."""

    code, status = "overloaded", 429


class DeadlineExceeded(CapacityError):
    """The request took longer than allowed."""

    code, status = "deadline_exceeded", 504


class QuotaExceeded(CapacityError):
    """A client would hold more collections, images, bytes or jobs than it may."""

    code, status = "quota_exceeded", 429


class ShuttingDown(CapacityError):
    """The service is shutting down and refuses new requests."""

    code = "shutting_down"


class ModelError(MatchServeError):
    """A model cannot be used."""

    code, status, exit_code = "model_error", 503, 78


class ModelMissing(ModelError):
    """A file of the model is missing."""

    code = "model_missing"


class ModelCorrupt(ModelError):
    """A file of the model is damaged or differs from its checksum."""

    code = "model_corrupt"


class ModelMismatch(ModelError):
    """The inputs, outputs or descriptors of the model contradict its card."""

    code = "model_mismatch"


class ProviderUnavailable(ModelError):
    """The requested device or library is not available."""

    code = "provider_unavailable"


class InferenceFailed(ModelError):
    """The model failed while running."""

    code = "inference_failed"


class DeviceOutOfMemory(InferenceFailed):
    """The device has no memory left for even the smallest batch."""

    code = "device_out_of_memory"


class DeviceLost(InferenceFailed):
    """The device failed; this process cannot use it again."""

    code = "device_lost"


class WorkspaceError(MatchServeError):
    """The workspace of a collection cannot be used."""

    code, status, exit_code = "workspace_error", 500, 74


class StorageFull(WorkspaceError):
    """There is no room to write; the same command resumes when there is."""

    code, status = "storage_full", 507


class StorageDamaged(WorkspaceError):
    """A stored file is damaged or cut off."""

    code = "storage_damaged"


class StorageUnavailable(WorkspaceError):
    """An object store does not answer; the same command continues when it does."""

    code, status, exit_code = "storage_unavailable", 503, 75


class WorkspaceMismatch(WorkspaceError):
    """The workspace was made with another model or other options."""

    code, status, exit_code = "workspace_mismatch", 409, 2


class WorkspaceBusy(WorkspaceError):
    """Another process is working in the workspace."""

    code, status, exit_code = "workspace_busy", 409, 75


class WorkerLost(MatchServeError):
    """A worker process was killed again and again, most often for lack of memory."""

    code, status, exit_code = "worker_lost", 500, 71


class ReconstructionFailed(MatchServeError):
    """No 3D model could be made from a collection."""

    code, status, exit_code = "reconstruction_failed", 422, 65
