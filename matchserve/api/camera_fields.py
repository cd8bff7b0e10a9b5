"""Fields of requests that describe the cameras of a pose."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from matchserve.options import verify_options
from matchserve.vision.cameras import TEXT_FORMS, Camera
from matchserve.vision.distortion import LENSES
from matchserve.vision.geometry import VerifyChoice, VerifyOptions

MAX_CAMERA_TEXT = 512


class CameraJson(BaseModel):
    """A camera as COLMAP describes it; pixel centres are at 0.5."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: Annotated[str, Field(max_length=32, description=f"One of {', '.join(LENSES)}.")]
    params: Annotated[list[float], Field(max_length=16, fail_fast=True)]
    width: Annotated[
        int | None, Field(ge=1, description="Size of the camera's images; that sent if unset.")
    ] = None
    height: Annotated[int | None, Field(ge=1)] = None

    def camera(self) -> Camera:
        """Return the camera.

        Raises:
            InvalidParameter: there is no such model, or the parameters do not fit it.
        """
        size = None if self.width is None or self.height is None else (self.width, self.height)
        return Camera.from_colmap(self.model, self.params, size)


CameraValue = Annotated[str, Field(max_length=MAX_CAMERA_TEXT)] | CameraJson


class CameraFields(BaseModel):
    """The cameras of both images."""

    camera: Annotated[
        CameraValue | None,
        Field(
            description="Camera of both images for verify=pose: exif for the focal length of their "
            f"EXIF data, {TEXT_FORMS}; in JSON also an object."
        ),
    ] = None
    camera0: Annotated[
        CameraValue | None, Field(description="Camera of the first image, as in camera.")
    ] = None
    camera1: Annotated[
        CameraValue | None, Field(description="Camera of the second image, as in camera.")
    ] = None

    def verify_with_cameras(self, kind: VerifyChoice | None, threshold_px: float) -> VerifyOptions:
        """Return the geometry to estimate.

        Raises:
            InvalidParameter: a camera cannot be read, is missing, or is not needed.
        """
        cameras = (
            value.camera() if isinstance(value, CameraJson) else value
            for value in (self.camera, self.camera0, self.camera1)
        )
        return verify_options(kind, threshold_px, *cameras)
