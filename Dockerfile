# Two images: `docker build --target cpu .` (the default) and `docker build --target gpu .`.
# tests/service/test_container.py performs the steps of build-cpu and cpu without an engine.

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

FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04 AS build-gpu
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY matchserve ./matchserve
COPY training ./training
COPY models ./models
RUN python3 -m venv /opt/matchserve
RUN /opt/matchserve/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[gpu]'
RUN /opt/matchserve/bin/pip uninstall --yes --quiet pip setuptools

FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04 AS gpu
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build-gpu /opt/matchserve /opt/matchserve
ENV PATH=/opt/matchserve/bin:/usr/local/bin:/usr/bin:/bin
ENV PYTHONDONTWRITEBYTECODE=1
ENV MATCHSERVE_HOST=0.0.0.0
ENV MATCHSERVE_LOG_FORMAT=json
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
