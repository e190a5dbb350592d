# The server, without models: they are mounted at /models, or `geartrain build` makes an image of them.
# docs/deploy.md says more.
ARG BASE=docker.io/library/python:3.12-slim

FROM ${BASE} AS system

FROM system AS build
# Packages of Debian for packages without a wheel; empty for none.
ARG BUILD_PACKAGES=build-essential
RUN if [ -n "$BUILD_PACKAGES" ]; then apt-get update && apt-get install -y --no-install-recommends $BUILD_PACKAGES && rm -rf /var/lib/apt/lists/*; fi
RUN python3 -m venv /opt/geartrain
ARG EXTRAS=
COPY ["pyproject.toml", "/build/pyproject.toml"]
COPY ["README.md", "/build/README.md"]
COPY ["LICENSE", "/build/LICENSE"]
COPY ["constraints.txt", "/build/constraints.txt"]
COPY ["src/", "/build/src/"]
COPY ["examples/", "/build/examples/"]
WORKDIR /build
RUN --mount=type=secret,id=pip,target=/etc/pip.conf /opt/geartrain/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c /build/constraints.txt "/build$EXTRAS"

FROM system
COPY --from=build /opt/geartrain /opt/geartrain
ENV PATH="/opt/geartrain/bin:$PATH" \
    HOST="0.0.0.0" \
    HOME="/tmp" \
    XDG_CACHE_HOME="/tmp/cache" \
    PYTHONDONTWRITEBYTECODE="1"
RUN printf '#!/bin/sh\nexec /opt/geartrain/bin/python -m geartrain.cli.sagemaker /models\n' >/opt/geartrain/bin/serve && chmod 755 /opt/geartrain/bin/serve
WORKDIR /models
USER 10001:10001
EXPOSE 5000
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 CMD ["/opt/geartrain/bin/python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '5000') + '/livez', timeout=4)"]
STOPSIGNAL SIGTERM
CMD ["geartrain", "serve", "/models"]
