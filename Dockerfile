# delayd in a container: docs/operations.md, "Container", says how to run it.
FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements/build.txt requirements/runtime.txt requirements/postgres.txt requirements/
RUN python -m venv /build \
 && /build/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements/build.txt \
 && python -m venv --without-pip /opt/delayd \
 && python -m pip --python /opt/delayd install --no-cache-dir --no-deps --require-hashes --requirement requirements/runtime.txt \
 && python -m pip --python /opt/delayd install --no-cache-dir --no-deps --require-hashes --requirement requirements/postgres.txt
COPY pyproject.toml README.md LICENSE ./
COPY .ci/compile.py .ci/compile.py
COPY delayd delayd
# Bytecode is not compared with its source: layers may have other times, and nothing in an image changes.
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheel . \
 && python -m pip --python /opt/delayd install --no-cache-dir --no-index --no-deps /wheel/*.whl \
 && python -m compileall -q -f --invalidation-mode unchecked-hash /opt/delayd/lib

FROM python:3.11-slim
# No pip is left, nor the copies of pip and setuptools that Python brings along to install them from.
# The image of Python has no bytecode of the standard library, and the daemon's user could write none.
# The jobs' directory belongs to the user of the daemon.
RUN python -m pip uninstall --yes setuptools wheel pip \
 && rm -r /usr/local/lib/python3.*/ensurepip \
 && python -m compileall -q -f --invalidation-mode unchecked-hash -x '/(idlelib|lib2to3|tkinter|turtledemo)/' /usr/local/lib/python3.* \
 && install --directory --owner 65532 --group 65532 --mode 0700 /var/lib/delayd
COPY --from=build /opt/delayd /opt/delayd
# Other machines reach these addresses: without tokens or certificates the daemon refuses to start.
ENV PATH=/opt/delayd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    DELAYD_DATA_DIR=/var/lib/delayd \
    DELAYD_LINE_LISTEN=0.0.0.0:11300 \
    DELAYD_HTTP_LISTEN=0.0.0.0:11301
USER 65532:65532
WORKDIR /var/lib/delayd
VOLUME /var/lib/delayd
EXPOSE 11300 11301
# Without puts: a daemon that drains, or whose disk is full, is to be drained and not started anew.
# A start with many jobs takes seconds: until the end of the start period it is not counted as ill.
# No proxy is asked, even where Docker sets http_proxy in every container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:11301/readyz?puts=false', timeout=4)"]
ENTRYPOINT ["delayd"]
CMD ["serve"]
