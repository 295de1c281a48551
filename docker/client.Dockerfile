# The publisher and the consumer of compose.yaml.
FROM python:3.13-slim
RUN pip install --no-cache-dir "pika>=1.3.2,<2"
WORKDIR /client
# Readable with any umask of the checkout.
COPY --chmod=0644 publisher.py consumer.py ./
ENV PYTHONUNBUFFERED=1
USER 10002
ENTRYPOINT ["python"]
