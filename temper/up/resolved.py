"""The configuration a run really had, written beside its results.

Invariant: `load_settings(<run folder>/run.toml)` gives the same settings from any folder (paths are absolute),
and a run is resumed only under the configuration it was started with.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import structlog

from services.learner.stages import check_stages
from shared.domains.registry import load_domain
from shared.errors import ConfigError
from shared.settings import Settings, load_settings, parse_settings

FILE_NAME = "run.toml"
FREE_TO_CHANGE = (
    "bus", "storage", "publishing", "rollout", "verifier", "auditor", "sandbox", "telemetry", "run.folder", "model.path", "guard",
    "learner.device", "learner.processes", "learner.parallel", "learner.threads", "learner.keep_checkpoints", "learner.keep", "learner.max_buffered_groups",
)  # fmt: skip
"""What may differ when a run is resumed: where things are and how many work, not what is learnt. And the guard: it pauses
for a person to look, and a bound that was wrong must not stop the run at each step for ever."""


def resolve(settings: Settings) -> Settings:
    """The same settings with every relative path made absolute."""
    document = settings.model_dump(mode="json")
    document["run"]["folder"] = str(Path(settings.run.folder).absolute())
    document["storage"]["uri"] = settings.storage_uri
    document["model"]["path"] = str(Path(settings.model.path).absolute())
    for workload in document["workloads"]:
        _absolute(workload["episode"]["agent"])
    for declared in document["domains"]:
        # Written out in full: what the domain took from its workload would else count as its own default.
        declared["episode"] = settings.episode_of(declared["name"]).model_dump(mode="json")
        _absolute(declared["episode"]["agent"])
    for stage in document["stages"]:
        for key in ("data", "start_from"):
            if stage[key] and "://" not in stage[key]:
                stage[key] = str(Path(stage[key]).absolute())
    return parse_settings(document)


def _absolute(agent: dict[str, Any]) -> None:
    if agent["folder"]:
        agent["folder"] = str(Path(agent["folder"]).absolute())


def to_toml(settings: Settings) -> str:
    """TOML text of settings. Every leaf is written as TOML that JSON shares (strings, numbers, lists)."""
    lines: list[str] = []
    for name, value in settings.model_dump(mode="json").items():
        tables = value if isinstance(value, list) else [value]
        header = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
        for table in tables:
            lines += [header, *(f"{key} = {_inline(item)}" for key, item in table.items()), ""]
    return "\n".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    return json.dumps(value)


def differences(before: Settings, now: Settings) -> list[str]:
    """`stages.0.steps: 4 → 8` for every key that changes what is learnt."""
    return [
        change
        for key, change in _changes(before, now)
        if not any(_is_below(key, free) for free in FREE_TO_CHANGE)
    ]


def guard_differences(before: Settings, now: Settings) -> list[str]:
    """As `differences`, of the guard."""
    return [change for key, change in _changes(before, now) if _is_below(key, "guard")]


def _changes(before: Settings, now: Settings) -> list[tuple[str, str]]:
    """(key, the change in words) of every key that differs."""
    old, new = _flat(before.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    return [
        (key, f"{key}: {old.get(key)!r} → {new.get(key)!r}")
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _is_below(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def refuse_changes(before: Settings, now: Settings) -> None:
    """Raises `ConfigError` when a resumed run would learn something else than it was started for."""
    found = differences(before, now)
    if found:
        raise ConfigError(
            f"run {now.run.name!r} in {now.run_folder} was started with another configuration ({'; '.join(found)}); "
            f"set the old values, or give run.name a new value to start another run{_or_remove(now)}"
        )


def _or_remove(now: Settings) -> str:
    """The way to begin anew under the same name, where all that there is of a run lies in its folder: on a broker
    that lasts, or in a store elsewhere, the old run would still be found."""
    store = now.storage_uri.removeprefix("file://")
    alone = not now.bus.bootstrap_servers and Path(store).is_relative_to(now.run_folder)
    return f"; where nothing of it is worth keeping, remove {now.run_folder}" if alone else ""


def claim(settings: Settings) -> None:
    """Of a service that was started by itself: the run's folder says what the run is.

    The first one to come writes the file, as a whole; the others must agree with it, as `temper up` must. Where the
    folder cannot be written (a service's machine may hold nothing of the run) that is said, and the service goes on.
    Raises `ConfigError` where the configuration is another one, or has a stage or a difficulty that is refused.
    """
    resolved = resolve(settings)
    place = resolved.run_folder / FILE_NAME
    if not place.exists():
        # A mistake must not become what the run was started with.
        check_stages(resolved)
        _check_difficulties(resolved)
        try:
            _write_once(place, to_toml(resolved))
        except OSError as error:
            structlog.get_logger().warning(
                "run.toml not written: audit and report of this folder need it",
                place=str(place),
                cause=str(error),
            )
            return
    refuse_changes(load_settings(place, environment={}), resolved)


def _check_difficulties(settings: Settings) -> None:
    """Of the domains that are installed here: a learner's machine may hold none of them."""
    for declared in settings.domains:
        try:
            domain = load_domain(declared.name)
        except ConfigError:
            continue
        domain.parse_difficulty(declared.difficulty)


def _write_once(place: Path, text: str) -> None:
    """Makes `place` whole or not at all; one that is there stays as it is."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=place.parent, prefix=f".{FILE_NAME}."
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        with contextlib.suppress(FileExistsError):
            os.link(file.name, place)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = {str(i): item for i, item in enumerate(value)}.items()
    else:
        return {prefix: value}
    out: dict[str, Any] = {}
    for key, item in items:
        out.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return out
