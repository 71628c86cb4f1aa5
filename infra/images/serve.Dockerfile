# syntax=docker/dockerfile:1
# The image of serving pods, from the repository's folder:
#   docker build -f infra/images/serve.Dockerfile --build-arg BASE=python:3.11-slim-bookworm@sha256:... .
# CUDA's libraries come with torch's wheels; the driver is the node's. Write the digest into the pool's `image.ref` and what
# `warpbeam version --check` prints inside into `image.versions`.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS built
COPY infra/images/system.sh /build/infra/images/
RUN --mount=type=cache,target=/var/lib/apt --mount=type=cache,target=/var/cache/apt /build/infra/images/system.sh
COPY . /build
WORKDIR /build
RUN /build/infra/images/python.sh serve,kube /opt/warpbeam
RUN /build/infra/images/check.sh serve /opt/warpbeam

FROM ${BASE}
COPY infra/images/system.sh infra/images/user.sh /build/infra/images/
RUN --mount=type=cache,target=/var/lib/apt --mount=type=cache,target=/var/cache/apt /build/infra/images/system.sh
RUN /build/infra/images/user.sh
COPY --from=built /opt/warpbeam /opt/warpbeam
ENV PATH=/opt/warpbeam/bin:$PATH HF_HUB_OFFLINE=1
WORKDIR /home/warpbeam
USER 1000:1000
