# docker build -f docker/spark.Dockerfile -t slotmq-spark .
# Spark with SlotMQ's pipeline, for a master, workers and drivers alike: all of them need the same Python and packages.
FROM python:3.13-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE pytest_slotmq.py slotmq.py ./
COPY tools/__init__.py tools/compiled_build.py tools/extension_build.py tools/hatch_build.py ./tools/
COPY broker ./broker
RUN python -m venv /opt/slotmq && /opt/slotmq/bin/pip install --no-cache-dir ".[spark]"

FROM python:3.13-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10003 --no-create-home --home-dir /tmp spark \
    && install -d -o spark -g spark -m 0750 /lake
COPY --from=build /opt/slotmq /opt/slotmq
ENV PATH=/opt/slotmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SPARK_CONF_DIR=/etc/spark
USER 10003
WORKDIR /tmp
VOLUME /lake
STOPSIGNAL SIGTERM
ENTRYPOINT ["slotmq"]
CMD ["pipeline", "doctor"]
