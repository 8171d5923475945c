# overlap-exporter as a container image: no shell, no compiler and no pip are needed to run it.
#   docker build -t overlap-exporter --build-arg VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' exporter/__init__.py) .
# Pin the base by digest for a release: --build-arg BASE_IMAGE=python:3.13-slim-bookworm@sha256:...
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
# For networks with a mirror of their own, or with a folder of wheels: pip reads these from the environment.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY deploy/image/requirements.txt deploy/image/requirements-build.txt ./
RUN python3 -m venv tools \
 && tools/bin/pip install --require-hashes --only-binary :all: -r requirements-build.txt \
 && python3 -m venv --without-pip /opt/overlap-exporter \
 && tools/bin/pip --python /opt/overlap-exporter/bin/python install --require-hashes --only-binary :all: -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
# Dates inside the wheel do not change from build to build.
ARG SOURCE_DATE_EPOCH=1767225600
RUN tools/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir dist . \
 && tools/bin/pip --python /opt/overlap-exporter/bin/python install --no-deps --no-index dist/*.whl

FROM ${BASE_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="overlap-exporter" \
      org.opencontainers.image.description="Shows Prometheus whether communication hides behind compute on a GPU node" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/overlap-exporter /opt/overlap-exporter
# Bytecode was written by the build: at run time the root may be read-only. The NVIDIA variables have the container toolkit
# show all GPUs with NVML alone; they take no GPU away from anybody.
ENV PATH=/opt/overlap-exporter/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    HEALTH_URL=http://127.0.0.1:9777/-/healthy
USER 10001:10001
EXPOSE 9777
# For Docker; Kubernetes has its own probes. With TLS, authentication or another port: set HEALTH_URL, or --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s --retries=3 \
  CMD ["/opt/overlap-exporter/bin/python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/overlap-exporter/bin/overlap-exporter"]
CMD ["serve"]
