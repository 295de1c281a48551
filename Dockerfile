# docker build -t slotmq .
# Not the slim one: it has the C compiler with which pip compiles the hot modules.
FROM python:3.13 AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE pytest_slotmq.py slotmq.py ./
COPY tools/__init__.py tools/compiled_build.py tools/extension_build.py tools/hatch_build.py ./tools/
COPY broker ./broker
RUN python -m venv /opt/slotmq && /opt/slotmq/bin/pip install --no-cache-dir ".[cluster,manage,re2]" \
    && /opt/slotmq/bin/slotmq --version | grep -F "(compiled: "

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home --home-dir /var/lib/slotmq slotmq \
    && install -d -o slotmq -g slotmq -m 0750 /var/lib/slotmq
COPY --from=build /opt/slotmq /opt/slotmq
# guest is let in from outside the container only while there is no other user, and the log warns of it.
ENV PATH=/opt/slotmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLOTMQ_SERVER__HOST=0.0.0.0 \
    SLOTMQ_SERVER__DATA_DIR=/var/lib/slotmq \
    SLOTMQ_AUTH__GUEST_ANYWHERE=true \
    SLOTMQ_HTTP__ENABLED=true \
    SLOTMQ_METRICS__ENABLED=true
USER 10001
WORKDIR /var/lib/slotmq
VOLUME /var/lib/slotmq
EXPOSE 5672 5671 1883 8883 15672 15692
STOPSIGNAL SIGTERM
# What `slotmq health` does, less the start of a command line: the running broker answers, whatever its port is.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s \
    CMD ["python", "-I", "-c", "from broker.cli.health import health; raise SystemExit(health([]))"]
ENTRYPOINT ["slotmq"]
CMD ["serve"]
