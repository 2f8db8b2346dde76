"""An S3 server on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

USER, SECRET, REGION = "somebody", "secret", "us-east-1"


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """Start a server of moto; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not _listens(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def s3_bucket(
    folder: Path, bucket: str, variables: Callable[[str], dict[str, str]]
) -> Iterator[Any]:
    """Client of a new server with a bucket, whose address the environment gets by variables."""
    with s3_server(folder / "log.txt") as address, pytest.MonkeyPatch.context() as patch:
        for name, value in variables(address).items():
            patch.setenv(name, value)
        keys = {"aws_access_key_id": USER, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=address, region_name=REGION, **keys)
        client.create_bucket(Bucket=bucket)
        yield client
        client.close()


def environment(address: str) -> dict[str, str]:
    """Variables that a user sets for this server."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
