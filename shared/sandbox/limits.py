"""What one run may use.

Invariant: every limit is there, positive and one that the kernel can be given, so nothing runs without bounds because
somebody left one out, and a number that no machine has is refused before anything is started.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from shared.errors import ConfigError

MIB = 1 << 20
MOST = {
    "wall_s": 1e9, "cpu_s": 1e9, "memory_mb": 1 << 24, "processes": 1 << 16, "output_kb": 1 << 18, "file_mb": 1 << 24,
    "disk_mb": 1 << 24, "inodes": 1 << 30, "open_files": 1 << 20,
}  # fmt: skip
"""A generation, 16 TiB; as many processes as a small machine allows one user; the default of fs.nr_open; and 256 MiB of
each stream, which we hold. Far past them a cgroup file, an rlimit or nsjail's options refuse the number, which would
look like a fault of this machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one run and all processes it starts. Raises `ConfigError` for a limit that is not positive, or over `MOST`."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    """User and system time of the whole group."""
    memory_mb: int = 256
    """Of the whole group, files in /tmp, /dev/shm and the work folder included."""
    processes: int = 32
    """Processes and threads at once."""
    output_kb: int = 256
    """Kept of each stream; what is written past four times of it ends the run."""
    file_mb: int = 64
    """Of one file."""
    disk_mb: int = 64
    """Of each of /tmp, /dev/shm and the work folder."""
    inodes: int = 10_000
    """In each of them."""
    open_files: int = 64

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"limit {item.name} is {value}: it must be positive and finite")
            if value > MOST[item.name]:
                raise ConfigError(f"limit {item.name} is {value:g}: it must be at most {MOST[item.name]:g}")

    def within(self, seconds: float) -> Limits:
        """These, but over after `seconds` of wall time at most."""
        return replace(self, wall_s=max(0.001, min(self.wall_s, seconds)))
