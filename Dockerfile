# Two images: `docker build --target cpu .` (the default) and `docker build --target gpu .`.
# tests/service/test_container.py (cpu) and tests/gpu (gpu) perform these steps without an engine.
# Every package is installed by hash; `make lock` writes the lock files. `make pin-base-image` adds the
# digest of the base image.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build-cpu
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements ./requirements
COPY matchserve ./matchserve
COPY training ./training
COPY models ./models
RUN python3 -m venv /opt/matchserve
RUN /opt/matchserve/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements/cpu.txt
RUN python3 -m venv /opt/build
RUN /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements/build.txt
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
RUN /opt/matchserve/bin/pip install --no-index --no-deps --disable-pip-version-check dist/*.whl
# What only installing needs: the last stage has no pip and no compiler.
RUN /opt/matchserve/bin/pip uninstall --yes --quiet pip setuptools

FROM ${BASE_IMAGE} AS cpu
COPY --from=build-cpu /opt/matchserve /opt/matchserve
RUN rm -rf /usr/local/lib/python3.11/site-packages/pip* /usr/local/bin/pip*
ENV PATH=/opt/matchserve/bin:/usr/local/bin:/usr/bin:/bin
ENV PYTHONDONTWRITEBYTECODE=1
ENV MATCHSERVE_HOST=0.0.0.0
# Empty: a relative path in a hostile file leads nowhere.
WORKDIR /empty
ENV MATCHSERVE_LOG_FORMAT=json
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["matchserve"]
CMD ["serve"]

# The CUDA libraries come from wheels, pinned in constraints-gpu.txt, so the base image needs none:
# the NVIDIA container toolkit adds the driver. The installed packages take 3.9 GB.
FROM ${BASE_IMAGE} AS build-gpu
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements ./requirements
COPY matchserve ./matchserve
COPY training ./training
COPY models ./models
RUN python3 -m venv /opt/matchserve
RUN /opt/matchserve/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements/gpu.txt
RUN python3 -m venv /opt/build
RUN /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements/build.txt
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
RUN /opt/matchserve/bin/pip install --no-index --no-deps --disable-pip-version-check dist/*.whl
RUN /opt/matchserve/bin/pip uninstall --yes --quiet pip setuptools

FROM ${BASE_IMAGE} AS gpu
COPY --from=build-gpu /opt/matchserve /opt/matchserve
RUN rm -rf /usr/local/lib/python3.11/site-packages/pip* /usr/local/bin/pip*
ENV PATH=/opt/matchserve/bin:/usr/local/bin:/usr/bin:/bin
ENV PYTHONDONTWRITEBYTECODE=1
ENV MATCHSERVE_HOST=0.0.0.0
# Empty: a relative path in a hostile file leads nowhere.
WORKDIR /empty
ENV MATCHSERVE_LOG_FORMAT=json
# What the container toolkit mounts: libcuda (compute), NVML and nvidia-smi (utility).
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The driver compiles PTX for devices newer than the wheels, and the root file system is read-only.
ENV CUDA_CACHE_PATH=/tmp/cuda-cache
# Without a usable device the service does not start: it never falls back silently.
ENV MATCHSERVE_PROVIDER=cuda
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["matchserve"]
CMD ["serve"]

# What `docker build .` without a target makes.
FROM cpu
