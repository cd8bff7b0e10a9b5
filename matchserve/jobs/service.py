"""Collections and jobs of one service, put together from its settings."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from matchserve import defaults
from matchserve.errors import InvalidParameter, UnknownJob, UnknownModel
from matchserve.jobs.database import Database
from matchserve.jobs.kinds import JobRequest, Order
from matchserve.jobs.names import checked_source
from matchserve.jobs.runner import Runner
from matchserve.jobs.table import Job, JobTable
from matchserve.jobs.uploads import Uploads
from matchserve.models.registry import list_models
from matchserve.settings import Settings


class JobService:
    """Takes jobs, knows where their files lie, and runs them if it has cores for that."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Open or create the folder of collections and jobs.

        Raises:
            MatchServeError: it cannot be used.
        """
        self.settings, self.root = settings, root.absolute()
        database = Database(self.root / "service.db")
        self.table = JobTable(database, quotas=settings.quotas())
        self.uploads = Uploads(database, self.root / "collections", settings.quotas())
        self.cores = settings.cores_of_jobs()

    def runner(self) -> Runner:
        """Return a new runner of these jobs."""
        seconds = 3600 * self.settings.job_hours
        return Runner(self.table, self.order, self.root / "logs", max_job_s=seconds)

    def submit(self, owner: str, request: JobRequest, key: str | None) -> tuple[Job, bool]:
        """Check a request and add its job; return the job and whether it is new.

        Raises:
            MatchServeError: the request names something that is not there, or is too much.
        """
        self._check(request)
        if request.collection is not None:
            self.uploads.info(owner, request.collection)
            target = f"collection:{request.collection}"
        else:
            folder = checked_source(request.source or "", self.settings.source_folders())
            target = f"source:{folder}"
        job = self.table.submit(owner, request.model_dump(), target, key)
        for name in self.table.forget_oldest(owner):
            shutil.rmtree(self._results(name), ignore_errors=True)
            (self.root / "logs" / f"{name}.log").unlink(missing_ok=True)
        return job

    def order(self, job: Job) -> Order:
        """Return where everything of a job lies.

        Raises:
            MatchServeError: its images are no longer there.
        """
        request = JobRequest.model_validate(job.body)
        settings = self.settings
        if request.collection is not None:
            self.uploads.info(job.owner, request.collection)
            place = self.uploads.folder(job.owner, request.collection)
            images = place / "images"
        else:
            images = checked_source(request.source or "", settings.source_folders())
            digest = hashlib.sha256(str(images).encode()).hexdigest()[:24]
            place = self.root / "sources" / job.owner / digest
        keypoints = min(defaults.COLLECTION_MAX_KEYPOINTS, settings.max_keypoints)
        options = request.options(keypoints, settings.working_side)
        model = request.model or settings.default_model
        stamp = json.dumps([model, asdict(options)], sort_keys=True)
        return Order(
            request=request,
            images=images,
            workspace=place / "work" / hashlib.sha256(stamp.encode()).hexdigest()[:16],
            store=place / "features",
            results=self._results(job.id),
            cores=max(1, self.cores),
            niceness=settings.job_niceness,
            models_dir=settings.models_dir,
            provider=settings.provider,
            default_model=settings.default_model,
            max_keypoints=keypoints,
            max_side=settings.working_side,
        )

    def result(self, job: Job, name: str) -> Path:
        """Return a file of a job's results.

        Raises:
            UnknownJob: the job has no such result.
        """
        files = (job.outcome or {}).get("results", ())
        path = self._results(job.id) / name
        if name not in [file["name"] for file in files] or not path.is_file():
            raise UnknownJob("the job has no such result")
        return path

    def _results(self, job: str) -> Path:
        return self.root / "results" / job

    def _check(self, request: JobRequest) -> None:
        """Check what the schema cannot: limits of the settings and names of models."""
        settings = self.settings
        for name, limit in (
            ("max_keypoints", settings.max_keypoints),
            ("max_side", settings.max_side),
        ):
            value = getattr(request, name)
            if value is not None and value > limit:
                raise InvalidParameter(
                    f"{name} is {value}, at most {limit} is allowed", limit=limit, value=value
                )
        if request.model and request.model not in list_models(settings.models_dir):
            raise UnknownModel("no model of that name")
