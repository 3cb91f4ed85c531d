"""The object store: complete or absent, and never other bytes than were announced."""

from __future__ import annotations

import errno
import hashlib
import os
import time
import uuid
from pathlib import Path

import pytest

from shared.errors import DigestMismatchError, StorageError, UnreachableError
from shared.storage import ObjectStore


def test_what_is_put_comes_back_under_its_digest(store: ObjectStore, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    ref = store.put_bytes("weights/a", data)
    assert ref.sha256 == hashlib.sha256(data).hexdigest()
    assert ref.size_bytes == len(data)
    assert ref.uri == store.uri_of("weights/a")
    assert store.get_bytes(ref.uri, ref.sha256) == data
    assert store.fetch(ref.uri, ref.sha256, tmp_path / "cache").read_bytes() == data


def test_a_file_is_put_whole(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(os.urandom(9_000_000))
    ref = store.put_file("big", source)
    assert ref.size_bytes == 9_000_000
    assert store.fetch(ref.uri, ref.sha256, tmp_path / "cache").stat().st_size == 9_000_000


def test_keys_are_listed_and_deleted_by_prefix(store: ObjectStore) -> None:
    for key in ("a/1", "a/2", "ab/3", "c"):
        store.put_bytes(key, b"x")
    assert store.list() == ["a/1", "a/2", "ab/3", "c"]
    assert store.list("a/") == ["a/1", "a/2"]
    assert store.list("a") == ["a/1", "a/2", "ab/3"]
    store.delete("a")
    assert store.list() == ["ab/3", "c"]
    assert not store.exists("a/1")
    assert store.exists("c")
    store.delete("nothing/here")


def test_what_lies_below_a_folder_is_listed_with_its_size_and_age(store: ObjectStore) -> None:
    for key, size in (("a/r/2", 5), ("a/r/1", 3), ("a/s/1", 1), ("c", 1)):
        store.put_bytes(key, b"x" * size)
    listed = store.listed("a/r")
    assert [(stored.key, stored.size_bytes) for stored in listed] == [("a/r/1", 3), ("a/r/2", 5)]
    assert all(abs(stored.modified_s - time.time()) < 60 for stored in listed)
    assert store.listed("a/t") == store.listed("nothing") == []


def test_other_bytes_than_announced_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    ref = store.put_bytes("a", b"right")
    store.put_bytes("a", b"wrong")
    with pytest.raises(DigestMismatchError, match="announced was"):
        store.get_bytes(ref.uri, ref.sha256)
    with pytest.raises(DigestMismatchError):
        store.fetch(ref.uri, ref.sha256, tmp_path / "cache")
    store.put_bytes("a", b"right")
    assert store.fetch(ref.uri, ref.sha256, tmp_path / "cache").read_bytes() == b"right"


def test_a_missing_object_is_named(store: ObjectStore, tmp_path: Path) -> None:
    uri = store.uri_of("gone")
    for attempt in (lambda: store.get_bytes(uri), lambda: store.fetch(uri, "0" * 64, tmp_path)):
        with pytest.raises(StorageError, match="gone: no such object"):
            attempt()


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a"])
def test_a_key_never_leaves_the_store(store: ObjectStore, key: str) -> None:
    with pytest.raises(StorageError, match="not usable"):
        store.put_bytes(key, b"x")


def test_an_interrupted_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store = ObjectStore(f"memory://{uuid.uuid4().hex}/objects")
    data = os.urandom(50_000)
    ref = store.put_bytes("a", data)
    cache = tmp_path / "cache"
    cache.mkdir()
    partial = cache / f"{ref.sha256}.partial"
    partial.write_bytes(data[:20_000])
    assert store.fetch(ref.uri, ref.sha256, cache).read_bytes() == data
    assert not partial.exists()
    partial.write_bytes(b"another" * 3)
    (cache / ref.sha256).unlink()
    with pytest.raises(DigestMismatchError):
        store.fetch(ref.uri, ref.sha256, cache)
    assert store.fetch(ref.uri, ref.sha256, cache).read_bytes() == data, "a bad partial must not stay"


def test_a_full_disk_names_path_and_bytes_and_leaves_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"file://{tmp_path}/objects")
    ref = store.put_bytes("a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shared.storage.local.os.fsync", full)
    with pytest.raises(
        StorageError, match=r"objects/a: the disk is full: 1,000 bytes wanted, .* free; make room"
    ):
        store.put_bytes("a", b"x" * 1000)
    monkeypatch.undo()
    assert store.get_bytes(ref.uri, ref.sha256) == b"old"
    assert [path.name for path in (tmp_path / "objects").iterdir()] == ["a"], "a partial file was left"


def test_a_writer_in_place_gets_a_path_on_a_local_store_only(tmp_path: Path) -> None:
    local = ObjectStore(f"file://{tmp_path}/objects")
    path = local.local_path("checkpoints/00000001/weights")
    assert path is not None
    path.write_bytes(b"weights")
    ref = local.put_file("checkpoints/00000001/weights", path)
    assert local.get_bytes(ref.uri, ref.sha256) == b"weights"
    assert local.fetch(ref.uri, ref.sha256, tmp_path / "cache") == path, "a local object is not copied"
    assert ObjectStore("memory://x/y").local_path("a") is None


def test_a_protocol_that_is_not_there_is_named() -> None:
    with pytest.raises(StorageError, match="'nowhere://x' cannot be opened"):
        ObjectStore("nowhere://x")


def test_a_bucket_that_is_missing_and_one_that_is_not_ours_are_named(
    s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    with pytest.raises(
        StorageError, match=r"s3://nowhere/x/a cannot be written: its bucket .* make it, or correct"
    ):
        ObjectStore("s3://nowhere/x").put_bytes("a", b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        store = ObjectStore(f"{s3_uri}/x")
        for work in (
            lambda: store.put_bytes("a", b"x"),
            lambda: store.listed("a"),
            lambda: store.exists("a"),
        ):
            with pytest.raises(UnreachableError, match=r"is refused: .*credentials.* AWS_ACCESS_KEY_ID"):
                work()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
