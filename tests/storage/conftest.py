"""The kinds of store that the suite runs on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.storage import ObjectStore
from tests.s3 import BUCKET, s3_server


@pytest.fixture(scope="session")
def s3_uri() -> Iterator[str]:
    with s3_server() as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Of one test, empty."""
    if request.param == "file":
        return ObjectStore(f"file://{tmp_path}/objects")
    if request.param == "memory":
        return ObjectStore(f"memory://{uuid.uuid4().hex}/objects")
    return ObjectStore(f"{request.getfixturevalue('s3_uri')}/{uuid.uuid4().hex}")
