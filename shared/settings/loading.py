"""A run's configuration from its TOML file and the environment, checked before any work starts.

Invariant: a key that is not read is refused with the nearest known name; a value of another type is refused
with its place in the file. The environment overrides any scalar key: `TEMPER_<SECTION>__<KEY>=value`
(`TEMPER_BUS__BOOTSTRAP_SERVERS=host:9092`). Secrets come from the environment only.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.errors import ConfigError
from shared.plain_errors import explain, nearest, said
from shared.settings.run import Settings

ENVIRONMENT_PREFIX = "TEMPER_"


def load_settings(path: str | Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The checked settings of a TOML file, with the environment's overrides.

    Raises `ConfigError` in one line: file unreadable, TOML broken, key unknown (nearest name given), value wrong.
    """
    place = Path(path)
    try:
        document = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{place}: no such file; give the path of a run's TOML") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{place}: is a folder; give the path of a run's TOML, such as {place / 'run.toml'}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: cannot be read: {said(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: not valid TOML: {error}") from error
    _override(document, os.environ if environment is None else environment)
    return parse_settings(document, source=str(place))


def parse_settings(document: Mapping[str, Any], source: str = "settings") -> Settings:
    """As `load_settings`, from a document that is already there."""
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(Settings, error)}") from error


def _override(document: dict[str, Any], environment: Mapping[str, str]) -> None:
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, key = variable[len(ENVIRONMENT_PREFIX) :].lower().split("__", 1)
        if section not in Settings.model_fields:
            names = set(Settings.model_fields)
            raise ConfigError(
                f"environment {variable}: there is no section {section!r}{nearest(section, names)}"
            )
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"environment {variable}: [[{section}]] is a list; change it in the file")
        table[key] = _scalar(text)


def _scalar(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
