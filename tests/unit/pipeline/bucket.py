"""A bucket of a local S3-compatible server, which runs in its own process."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["bucket"]


@contextmanager
def bucket(name: str) -> Iterator[dict[str, str]]:
    """Create a bucket, and yield the environment variables for its clients."""
    server = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT"), timeout=30):
            pass
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def main() -> None:
    """Serve until the process is killed."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
