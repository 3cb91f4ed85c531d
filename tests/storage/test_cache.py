"""The cache of large objects: shared by processes, bounded, and never without what is in use."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import DigestMismatchError, StorageError
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache
from tests.storage.shaky import ShakyFileSystem, shaky_store


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(f"memory://{uuid.uuid4().hex}/objects")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_in_use_stays_and_the_oldest_goes_first(store: ObjectStore, tmp_path: Path) -> None:
    refs = [store.put_bytes(f"w{n}", os.urandom(1000)) for n in range(4)]
    cache, other = ObjectCache(tmp_path, 2500), ObjectCache(tmp_path, 0)
    paths = [cache.fetch(store, ref.uri, ref.sha256) for ref in refs]
    for n, path in enumerate(paths):
        os.utime(path, (n, n))
    assert other.tidy() == [] and cache.tidy() == [], "another process holds them all"
    cache.keep_only(paths[0])
    assert cache.tidy() == [paths[1].name], "two fit beside the one that is in use"
    assert names(tmp_path) == sorted(path.name for path in (paths[0], *paths[2:]))
    assert other.tidy() == [paths[2].name, paths[3].name]
    cache.close()
    assert other.tidy() == [paths[0].name] and names(tmp_path) == []


def test_an_object_that_was_removed_between_fetch_and_use_is_fetched_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    ref = store.put_bytes("w", b"weights")
    cache = ObjectCache(tmp_path)
    path = cache.fetch(store, ref.uri, ref.sha256)
    path.unlink()
    assert cache.fetch(store, ref.uri, ref.sha256).read_bytes() == b"weights"
    cache.forget(ref.sha256)
    assert names(tmp_path) == []


def test_a_made_file_has_its_digest_or_is_not_there(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    wanted = hashlib.sha256(b"right").hexdigest()
    builds = []

    def build(data: bytes, scratch: Path) -> str:
        builds.append(data)
        scratch.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    with pytest.raises(DigestMismatchError, match="announced was"):
        cache.make(wanted, lambda scratch: build(b"wrong", scratch))
    assert names(tmp_path) == []
    for _ in range(2):
        assert cache.make(wanted, lambda scratch: build(b"right", scratch)).read_bytes() == b"right"
    assert builds == [b"wrong", b"right"], "the second finds what the first made"


def _fetch(uri: str, sha256: str, folder: str, results: multiprocessing.SimpleQueue[str]) -> None:
    with shaky_store(Path(uri.split("://")[1]).parent.parent) as store:
        path = ObjectCache(Path(folder)).fetch(store, uri, sha256)
        results.put(f"{hashlib.sha256(path.read_bytes()).hexdigest()} {ShakyFileSystem.read_bytes}")


def test_processes_that_share_a_folder_fetch_once(tmp_path: Path) -> None:
    """The second waits for the first one's download; appended to by both, the file would be neither's."""
    with shaky_store(tmp_path) as store:
        data = os.urandom(20_000_000)
        ref = store.put_bytes("w", data)
        fork = multiprocessing.get_context("fork")
        results: multiprocessing.SimpleQueue[str] = fork.SimpleQueue()
        folder = str(tmp_path / "cache")
        works = [fork.Process(target=_fetch, args=(ref.uri, ref.sha256, folder, results)) for _ in range(4)]
        for work in works:
            work.start()
        told = [results.get().split() for _ in works]
        for work in works:
            work.join(30)
        assert {digest for digest, _ in told} == {ref.sha256}
        assert sum(int(count) for _, count in told) == len(data), "one download for all"
        assert names(tmp_path / "cache") == [ref.sha256]


def test_threads_of_one_process_do_not_corrupt_each_other(store: ObjectStore, tmp_path: Path) -> None:
    ref = store.put_bytes("w", os.urandom(9_000_000))
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: store.fetch(ref.uri, ref.sha256, tmp_path), range(8)))
    assert paths == {tmp_path / ref.sha256}
    assert names(tmp_path) == [ref.sha256]


def test_a_store_that_breaks_off_is_gone_on_from_and_one_that_is_away_is_named(tmp_path: Path) -> None:
    with shaky_store(tmp_path) as store:
        data = os.urandom(10_000_000)
        ref = store.put_bytes("w", data)
        cache = ObjectCache(tmp_path / "cache")
        ShakyFileSystem.breaks_after = 6_000_000
        with pytest.raises(StorageError, match=r"far/w cannot be reached: AwayError: connection reset"):
            cache.fetch(store, ref.uri, ref.sha256)
        assert names(cache.folder) == [f"{ref.sha256}.partial"]
        ShakyFileSystem.breaks_after, ShakyFileSystem.read_bytes = 0, 0
        assert cache.fetch(store, ref.uri, ref.sha256).read_bytes() == data
        assert ShakyFileSystem.read_bytes == 4_000_000, "what was there is not read again"
        ShakyFileSystem.away = True
        cache.forget(ref.sha256)
        for read in (
            lambda: cache.fetch(store, ref.uri, ref.sha256),
            lambda: store.get_bytes(ref.uri, ref.sha256),
        ):
            with pytest.raises(StorageError, match="cannot be reached: AwayError: no route to host"):
                read()
