"""Where our groups go: found again at the next start, and never outside of a bound that somebody set on us."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.sandbox.cgroups.choose import available, choose, owners_folders
from shared.sandbox.cgroups.mounts import Hierarchy, hierarchies, place
from shared.sandbox.cgroups.v1 import V1
from shared.sandbox.cgroups.v2 import V2, base_of
from shared.sandbox.faults import SandboxUnavailable
from shared.sandbox.limits import Limits
from shared.sandbox.owners import owner_name
from shared.sandbox.settings import SandboxSettings

UNLIMITED_V1 = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_hierarchies_of_version_1_and_2_side_by_side(tmp_path: Path) -> None:
    for name in ("memory/mine", "cpu,cpuacct", "unified"):
        (tmp_path / name).mkdir(parents=True)
    mountinfo = f"""\
30 24 0:26 / {tmp_path}/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
31 24 0:27 / {tmp_path}/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / {tmp_path}/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
33 24 0:28 / /elsewhere/memory rw,nosuid - cgroup cgroup rw,memory
34 24 0:29 / /proc rw - proc proc rw
"""
    own = "5:memory:/mine\n4:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::/\n"
    assert hierarchies(mountinfo, own) == [
        Hierarchy(frozenset(), tmp_path / "unified", tmp_path / "unified"),
        Hierarchy(frozenset({"cpu", "cpuacct"}), tmp_path / "cpu,cpuacct", tmp_path / "cpu,cpuacct"),
        Hierarchy(frozenset({"memory"}), tmp_path / "memory", tmp_path / "memory" / "mine"),
    ]


def test_a_container_sees_a_part_of_a_hierarchy(tmp_path: Path) -> None:
    """Docker without a cgroup namespace: the mount's root is our own group, /proc/self/cgroup names it from above."""
    (tmp_path / "memory").mkdir()
    mountinfo = f"32 24 0:28 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    (found,) = hierarchies(mountinfo, "5:memory:/docker/abc\n")
    assert (found.mount, found.own) == (tmp_path / "memory", tmp_path / "memory")


def test_a_folder_of_a_container_with_a_space_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    mountinfo = f"32 24 0:28 / {tmp_path}/a\\040b rw - cgroup cgroup rw,memory\n"
    (found,) = hierarchies(mountinfo, "5:memory:/\n")
    assert found.mount == tmp_path / "a b"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b": UNLIMITED_V1, "a": UNLIMITED_V1}, "."),
        ({"a/b": UNLIMITED_V1, "a": "1073741824"}, "a"),
        ({"a/b": "1073741824", "a": UNLIMITED_V1}, "a/b"),
        ({"a/b": "max", "a": "max"}, "."),
        ({}, "."),
    ],
)
def test_up_past_groups_that_bound_nothing(tmp_path: Path, limits: dict[str, str], expected: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    tree(tmp_path, {f"{group}/memory.limit_in_bytes": text for group, text in limits.items()})
    hierarchy = Hierarchy(frozenset({"memory"}), tmp_path, tmp_path / "a/b")
    assert place(hierarchy, ["memory.limit_in_bytes"]) == tmp_path / expected


def test_version_2_takes_the_highest_group_that_hands_both_controllers_down(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": "memory pids",
            "a/cgroup.controllers": "memory pids", "a/cgroup.subtree_control": "", "a/memory.max": "1000000",
            "a/b/cgroup.controllers": "memory pids", "a/b/cgroup.subtree_control": "", "a/b/memory.max": "max",
        },
    )  # fmt: skip
    assert base_of(Hierarchy(frozenset(), tmp_path, tmp_path / "a/b")) == tmp_path / "a"
    assert (tmp_path / "a/cgroup.subtree_control").read_text() == "+memory +pids"


def test_version_2_without_its_controllers_says_so(tmp_path: Path) -> None:
    tree(tmp_path, {"cgroup.controllers": "cpu io", "cgroup.subtree_control": ""})
    with pytest.raises(SandboxUnavailable, match="no controller memory, pids"):
        base_of(Hierarchy(frozenset(), tmp_path, tmp_path))


def test_what_is_not_mounted_is_said() -> None:
    with pytest.raises(SandboxUnavailable, match="not mounted"):
        V2([])
    with pytest.raises(SandboxUnavailable, match="no controller memory, pids, cpuacct"):
        V1([])


def test_a_tree_that_cannot_be_written_is_said() -> None:
    read_only = Path("/sys/kernel")
    machine = [Hierarchy(frozenset({"memory", "pids", "cpuacct"}), read_only, read_only)]
    with pytest.raises(SandboxUnavailable, match="cannot be made"):
        V1(machine)


def test_the_weaker_mode_is_taken_only_by_name() -> None:
    with pytest.raises(SandboxUnavailable, match="rlimits_only"):
        choose(SandboxSettings(cgroups="none"))
    chosen = choose(SandboxSettings(cgroups="none", allow_weaker=("rlimits_only",)))
    assert chosen.mode == "none"


def test_a_mode_that_is_asked_for_is_not_replaced_by_another() -> None:
    for mode, lacks in available().items():
        if lacks and mode != "none":
            with pytest.raises(SandboxUnavailable):
                choose(SandboxSettings(cgroups=mode, allow_weaker=("rlimits_only",)))  # type: ignore[arg-type]


@pytest.mark.skipif(
    not any(not lacks for mode, lacks in available().items() if mode != "none"), reason="no cgroups"
)
def test_a_group_has_its_owner_in_its_name_and_goes() -> None:
    cgroups = choose(SandboxSettings())
    group = cgroups.make(Limits())
    folders = [folder / owner_name() for folder in owners_folders()]
    assert any(path.is_dir() for folder in folders if folder.is_dir() for path in folder.iterdir())
    assert group.processes() == [] and group.counters().memory_kills == 0
    asyncio.run(group.remove())
    cgroups.close()
    assert not any(folder.exists() for folder in folders)


def test_two_sandboxes_of_one_process_do_not_meet() -> None:
    settings = SandboxSettings(allow_weaker=("rlimits_only",))
    first, second = choose(settings), choose(settings)
    groups = [first.make(Limits()), second.make(Limits())]
    first.close()
    groups.append(second.make(Limits()))

    async def remove() -> None:
        for group in groups:
            await group.remove()

    asyncio.run(remove())
    second.close()
