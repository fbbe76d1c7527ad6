# The gateway as an image.
#
#   docker build --tag stagedoor .                      servers that are reached over HTTP, and in-process ones
#   docker build --tag stagedoor:full --target full .   node and uv besides, for stdio servers from npm and PyPI
#
# Everything from PyPI comes by hash, from locks that hold nothing of development. It needs no place to write: run it with
# a read-only root filesystem. /var/lib/stagedoor may be a volume, for what is to outlive a container without Redis and
# `gateway.keys`; with `full` give /tmp a place, where npx and uvx keep what they fetched.
# Where there is no container engine, scripts/image.py carries out the same steps in a folder.
ARG PYTHON=3.11
ARG NODE=24

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
COPY deploy/image/build.lock deploy/image/runtime.lock ./
RUN python -m pip install --no-cache-dir --no-compile --no-deps --require-hashes --requirement build.lock \
    && mkdir -p /var/lib/stagedoor \
    && python -m venv --without-pip /opt/stagedoor
# pip would read all that an index has of each package, though the lock names the one; uv looks for that one.
ENV UV_LINK_MODE=copy
ARG UV_COMPILE_BYTECODE=1
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install --python /opt/stagedoor/bin/python --no-deps --require-hashes --requirement runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY actors actors
COPY gateway gateway
COPY stagedoor stagedoor
RUN --mount=type=cache,target=/root/.cache/uv \
    uv build --quiet --python /usr/local/bin/python --no-build-isolation --wheel --out-dir wheels \
    && uv pip install --python /opt/stagedoor/bin/python --no-deps --no-index wheels/*.whl

FROM node:${NODE}-bookworm-slim AS node

FROM python:${PYTHON}-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="stagedoor" \
      org.opencontainers.image.description="Many MCP servers behind one endpoint, and no session lost" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/stagedoor/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    XDG_STATE_HOME=/var/lib \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/stagedoor /opt/stagedoor
COPY --from=build --chown=65532:65532 /var/lib/stagedoor /var/lib/stagedoor
WORKDIR /opt/stagedoor
USER 65532:65532
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8081/readyz', timeout=4)"]
ENTRYPOINT ["stagedoor"]
CMD ["serve", "--listen", "0.0.0.0:8080", "--admin", "0.0.0.0:8081"]

FROM runtime AS full
USER 0
COPY --from=build /usr/local/bin/uv /usr/local/bin/uvx /usr/local/bin/
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
USER 65532:65532

# The last stage is what is built when none is named.
FROM runtime AS slim
