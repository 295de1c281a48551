# docker build -t slotmq .
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY broker ./broker
RUN python -m venv /opt/slotmq && /opt/slotmq/bin/pip install --no-cache-dir .

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home --home-dir /var/lib/slotmq slotmq \
    && install -d -o slotmq -g slotmq -m 0750 /var/lib/slotmq
COPY --from=build /opt/slotmq /opt/slotmq
ENV PATH=/opt/slotmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLOTMQ_SERVER__HOST=0.0.0.0 \
    SLOTMQ_SERVER__DATA_DIR=/var/lib/slotmq
USER slotmq
WORKDIR /var/lib/slotmq
VOLUME /var/lib/slotmq
EXPOSE 5672
STOPSIGNAL SIGTERM
# Listening is all that is asked (0A is the TCP state LISTEN, 1628 is 5672): no process but the shell, no connection.
HEALTHCHECK --interval=10s --timeout=2s --start-period=30s \
    CMD ["/bin/sh", "-c", "while read -r _ local _ state _; do case $local$state in *:16280A) exit 0;; esac; done </proc/net/tcp; exit 1"]
ENTRYPOINT ["slotmq"]
CMD ["serve"]
