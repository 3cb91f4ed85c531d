"""An S3 server of our own process, and the environment that leads clients to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """What clients need in their environment; there is one bucket, `BUCKET`."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }
        client = boto3.client(
            "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="tests", aws_secret_access_key="tests",
        )  # fmt: skip
        client.create_bucket(Bucket=BUCKET)
        yield environment
    finally:
        server.stop()
