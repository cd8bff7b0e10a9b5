"""Prometheus metrics of the service.

Labels never hold request ids, file names or paths: each new value would be a new time series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from matchserve.types import MatchResult

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STAGE_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
_COUNTS = (0, 10, 50, 100, 250, 500, 1000, 2000, 4000, 8000)
_PATCHES = (1, 8, 16, 32, 48, 64, 128, 256, 512)
_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)


class Metrics:
    """Metrics of one application, in a registry of its own so that tests can create several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.requests = self._counter(
            "requests", "Number of responses.", ("route", "method", "code")
        )
        self.duration = self._histogram(
            "request_duration_seconds",
            "Duration of a request, from its head to the end of the response.",
            _SECONDS,
            ("route",),
        )
        self.stages = self._histogram(
            "stage_duration_seconds",
            "Duration of one stage of a request.",
            _STAGE_SECONDS,
            ("stage",),
        )
        self.batch_patches = self._histogram(
            "batch_size_patches", "Number of patches in one inference.", _PATCHES
        )
        self.batch_jobs = self._histogram(
            "batch_size_requests",
            "Number of images whose patches share one inference.",
            (1, 2, 4, 8, 16),
        )
        self.keypoints = self._histogram("keypoints", "Number of keypoints of one image.", _COUNTS)
        self.matches = self._histogram(
            "matches", "Number of matches of one pair of images.", _COUNTS
        )
        self.inlier_ratio = self._histogram(
            "inlier_ratio", "Inliers divided by matches, for one pair of images.", _RATIOS
        )
        self.rejected = self._counter("rejected", "Number of refused requests.", ("reason",))
        self.cache = self._counter(
            "feature_cache", "Number of lookups in the feature cache.", ("outcome",)
        )
        self.model_info = Gauge(
            "matchserve_model_info",
            "Loaded model, with the execution provider that runs it.",
            ("model", "version", "sha256", "provider"),
            registry=self.registry,
        )
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds",
            "Delay of the event loop: how much later than planned it wakes up.",
            _SECONDS,
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read when the metrics are collected."""
        gauge = Gauge(f"matchserve_{name}", text, registry=self.registry)
        gauge.set_function(read)

    def observe_stages(self, timings_ms: Mapping[str, float]) -> None:
        """Record the durations of the stages of one request."""
        for stage, milliseconds in timings_ms.items():
            if stage != "total":
                self.stages.labels(stage).observe(milliseconds / 1e3)

    def observe_result(self, result: MatchResult) -> None:
        """Record the result of matching one pair of images."""
        self.observe_stages(result.timings_ms)
        self.keypoints.observe(len(result.features0))
        self.keypoints.observe(len(result.features1))
        self.matches.observe(len(result.matches))
        if len(result.matches) and result.verification.kind != "none":
            self.inlier_ratio.observe(result.inlier_count / len(result.matches))

    def observe_batch(self, patches: int, jobs: int) -> None:
        """Record the size of one inference."""
        self.batch_patches.observe(patches)
        self.batch_jobs.observe(jobs)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"matchserve_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(
            f"matchserve_{name}", text, labels, buckets=buckets, registry=self.registry
        )
