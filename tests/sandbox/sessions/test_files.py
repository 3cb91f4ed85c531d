"""Files of a hostile workspace, read and written from outside."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sessions.files import WorkspaceRefusal, listing, read_file, remove_file, write_file


@pytest.fixture
def work(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "work"
    folder.mkdir()
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    yield descriptor, folder
    os.close(descriptor)


def test_what_is_written_is_read(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    write_file(descriptor, "a/b/c.txt", b"\0\xff", 0o640, os.getuid())
    assert read_file(descriptor, "a/b/c.txt", 10) == b"\0\xff"
    assert (folder / "a/b/c.txt").stat().st_mode & 0o777 == 0o640
    assert [entry.path for entry in listing(descriptor)] == ["a", "a/b", "a/b/c.txt"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "", "x\0y"])
def test_a_path_that_leaves_is_refused_before_it_is_tried(work: tuple[int, Path], path: str) -> None:
    for call in (lambda: read_file(work[0], path, 10), lambda: write_file(work[0], path, b"", 0o600, 0)):
        with pytest.raises(ConfigError, match="leaves the work folder"):
            call()


def test_no_link_is_followed_on_any_part(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    (folder / "link").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "self").symlink_to("/proc/self")
    for path in ("link", "up/secret", "self/environ"):
        with pytest.raises(WorkspaceRefusal, match="no link is followed|Not a directory"):
            read_file(descriptor, path, 100)
    with pytest.raises(WorkspaceRefusal):
        write_file(descriptor, "up/planted", b"x", 0o600, os.getuid())
    assert not (folder.parent / "planted").exists()


def test_writing_over_a_link_replaces_the_link(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    (folder / "out").symlink_to("../secret")
    write_file(descriptor, "out", b"mine", 0o600, os.getuid())
    assert (folder.parent / "secret").read_text() == "outside"
    assert (folder / "out").read_bytes() == b"mine"
    (folder / "again").symlink_to("../secret")
    remove_file(descriptor, "again")
    assert (folder.parent / "secret").exists()


def test_a_pipe_a_device_and_a_folder_are_no_files(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    if os.getuid() == 0:
        os.mknod(folder / "device", 0o20644, os.makedev(1, 5))
        with pytest.raises(WorkspaceRefusal, match="device"):
            read_file(descriptor, "device", 10)
    for path in ("pipe", "folder"):
        with pytest.raises(WorkspaceRefusal):
            read_file(descriptor, path, 10)


def test_a_file_of_a_pebibyte_is_refused_by_its_size(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(WorkspaceRefusal, match="at most 1000 are read"):
        read_file(descriptor, "huge", 1000)


def test_a_folder_swapped_for_a_link_meanwhile_never_leads_out(work: tuple[int, Path]) -> None:
    """The race that realpath-and-open loses: a thread swaps `d` between a folder and a link to the outside."""
    descriptor, folder = work
    (folder / "real").mkdir()
    (folder / "real" / "secret").write_text("inside")
    (folder / "trap").symlink_to("..")
    (folder / "d").mkdir()
    stop = threading.Event()

    def swap() -> None:
        names = ["real", "trap"]
        while not stop.is_set():
            for name in names:
                (folder / "d").rename(folder / "aside")
                (folder / name).rename(folder / "d")
                (folder / "d").rename(folder / name)
                (folder / "aside").rename(folder / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            with contextlib.suppress(WorkspaceRefusal):
                assert read_file(descriptor, "d/secret", 100) != b"outside"
    finally:
        stop.set()
        thread.join()


def test_a_listing_has_an_end(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    for number in range(20):
        (folder / f"f{number}").touch()
    with pytest.raises(WorkspaceRefusal, match="over 10 names"):
        listing(descriptor, 10)


def test_a_thousand_nested_folders_are_listed(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert len(listing(descriptor)) == 1000
    finally:
        # pytest's own clean-up recurses once a folder.
        subprocess.run(["rm", "-rf", folder / "d"], check=True)


def test_paths_that_grow_with_every_folder_are_not_listed(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    name = "x" * 255
    here = os.open(folder, os.O_RDONLY)
    for _ in range(30):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        with pytest.raises(WorkspaceRefusal, match="a path of over 4000 bytes"):
            listing(descriptor)
    finally:
        subprocess.run(["rm", "-rf", folder / name], check=True)


def test_many_folders_side_by_side_take_no_descriptors(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    for number in range(300):
        (folder / f"d{number}").mkdir()
        (folder / f"d{number}" / "file").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 10, hard), hard))
    try:
        found = listing(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(entry.kind == "file" for entry in found) == 300


def test_a_folder_that_cannot_be_opened_is_a_fault_and_not_an_empty_one(work: tuple[int, Path]) -> None:
    descriptor, folder = work
    (folder / "d").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare: list[int] = []
    lowest = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(lowest, hard), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(descriptor))
        with pytest.raises(SandboxFault, match="cannot be listed"):
            listing(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in spare:
            os.close(one)
