"""Which folder holds the traces of the run that is meant.

Invariant: a folder that is named is used or refused by name; only where none is named is one chosen, the newest.
"""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigError


def trace_folder(run: Path | None, runs: Path = Path("runs")) -> Path:
    """`<run>/traces`. Raises `ConfigError` where there is none."""
    if run is None:
        found = [place for place in runs.glob("*/traces") if place.is_dir()]
        if not found:
            raise ConfigError(f"{runs}/ holds no run with traces; name the run's folder with --run")
        return max(found, key=lambda place: place.stat().st_mtime_ns)
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run folder; give the folder that holds the run's run.toml")
    if not (run / "traces").is_dir():
        raise ConfigError(f"{run}: no traces in it; was it run with telemetry.traces = 'none'?")
    return run / "traces"
