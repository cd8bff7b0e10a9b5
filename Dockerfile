# Two images: `docker build --target cpu .` (the default) and `docker build --target gpu .`.
# tests/service/test_container.py (cpu) and tests/gpu (gpu) perform these steps without an engine.

FROM python:3.11-slim-bookworm AS build-cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY matchserve ./matchserve
COPY training ./training
COPY models ./models
RUN python3 -m venv /opt/matchserve
RUN /opt/matchserve/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[cpu]'
# What only installing needs: the last stage has no pip and no compiler.
RUN /opt/matchserve/bin/pip uninstall --yes --quiet pip setuptools

FROM python:3.11-slim-bookworm AS cpu
COPY --from=build-cpu /opt/matchserve /opt/matchserve
RUN rm -rf /usr/local/lib/python3.11/site-packages/pip* /usr/local/bin/pip*
ENV PATH=/opt/matchserve/bin:/usr/local/bin:/usr/bin:/bin
ENV PYTHONDONTWRITEBYTECODE=1
ENV MATCHSERVE_HOST=0.0.0.0
ENV MATCHSERVE_LOG_FORMAT=json
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["matchserve"]
CMD ["serve"]

# The CUDA libraries come from wheels, pinned in constraints-gpu.txt, so the base image needs none:
# the NVIDIA container toolkit adds the driver. The installed packages take 3.9 GB.
FROM python:3.11-slim-bookworm AS build-gpu
WORKDIR /src
COPY pyproject.toml constraints.txt constraints-gpu.txt README.md LICENSE ./
COPY matchserve ./matchserve
COPY training ./training
COPY models ./models
RUN python3 -m venv /opt/matchserve
RUN /opt/matchserve/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt -c constraints-gpu.txt '.[gpu]'
RUN /opt/matchserve/bin/pip uninstall --yes --quiet pip setuptools

FROM python:3.11-slim-bookworm AS gpu
COPY --from=build-gpu /opt/matchserve /opt/matchserve
RUN rm -rf /usr/local/lib/python3.11/site-packages/pip* /usr/local/bin/pip*
ENV PATH=/opt/matchserve/bin:/usr/local/bin:/usr/bin:/bin
ENV PYTHONDONTWRITEBYTECODE=1
ENV MATCHSERVE_HOST=0.0.0.0
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
