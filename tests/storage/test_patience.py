"""A store that is away: waited for while patience lasts, then named; what waiting cannot mend is told at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.errors import StorageError, UnreachableError
from shared.storage import ObjectStore
from shared.storage.remote import Patience
from tests.storage.shaky import ShakyFileSystem, shaky_store


class Clock:
    """Seconds that pass only while somebody waits; the store comes back at `back_at`."""

    def __init__(self, back_at: float) -> None:
        self.time = 0.0
        self.back_at = back_at

    def wait(self, seconds: float) -> None:
        self.time += seconds
        ShakyFileSystem.away = self.time < self.back_at

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, now=lambda: self.time, wait=self.wait)


def test_everything_waits_for_a_store_that_comes_back(tmp_path: Path) -> None:
    with shaky_store(tmp_path) as plain:
        ref = plain.put_bytes("there", b"weights")
        (tmp_path / "file").write_bytes(b"a file")
        for work in (
            lambda store: store.put_bytes("a", b"1"),
            lambda store: store.put_file("b", tmp_path / "file"),
            lambda store: store.put_chunks("c", [b"2", b"3"], 2),
            lambda store: store.get_bytes(ref.uri, ref.sha256),
            lambda store: store.fetch(ref.uri, ref.sha256, tmp_path / "cache"),
            lambda store: store.exists("there"),
        ):
            clock = Clock(back_at=60.0)
            ShakyFileSystem.away = True
            assert work(ObjectStore(plain.uri, clock.patience(180.0)))
            assert 60.0 <= clock.time < 66.0, "it is asked again every few seconds"
        assert plain.get_bytes(plain.uri_of("c")) == b"23", (
            "what is written again is written from the beginning"
        )


def test_patience_ends_with_the_reason(tmp_path: Path) -> None:
    with shaky_store(tmp_path) as plain:
        clock = Clock(back_at=1e9)
        ShakyFileSystem.away = True
        with pytest.raises(UnreachableError, match=r"far/a cannot be reached: AwayError: no route to host"):
            ObjectStore(plain.uri, clock.patience(180.0)).put_bytes("a", b"1")
        assert clock.time == pytest.approx(180.0)
        with pytest.raises(UnreachableError, match="cannot be reached"):
            plain.exists("a")


def test_what_waiting_does_not_mend_is_told_at_once(tmp_path: Path) -> None:
    with shaky_store(tmp_path) as plain:
        clock = Clock(back_at=0.0)
        store = ObjectStore(plain.uri, clock.patience(180.0))
        with pytest.raises(StorageError, match="no such object"):
            store.get_bytes(store.uri_of("gone"))
        with pytest.raises(StorageError, match="no such object"):
            store.fetch(store.uri_of("gone"), "0" * 64, tmp_path / "cache")
        assert clock.time == 0.0


def test_a_stop_ends_a_download_and_the_next_process_goes_on(tmp_path: Path) -> None:
    with shaky_store(tmp_path) as plain:
        data = os.urandom(10_000_000)
        ref = plain.put_bytes("w", data)
        asked: list[None] = []

        def stop() -> bool:
            asked.append(None)
            return len(asked) >= 2

        stopping = ObjectStore(plain.uri, Patience(180.0, stop=stop))
        with pytest.raises(UnreachableError, match="this process stops"):
            stopping.fetch(ref.uri, ref.sha256, tmp_path / "cache")
        had = (tmp_path / "cache" / f"{ref.sha256}.partial").stat().st_size
        assert 0 < had < len(data)
        ShakyFileSystem.read_bytes = 0
        assert plain.fetch(ref.uri, ref.sha256, tmp_path / "cache").read_bytes() == data
        assert ShakyFileSystem.read_bytes == len(data) - had
