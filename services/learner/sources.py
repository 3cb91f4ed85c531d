"""What stages say of the weights that they begin with, looked at before any work starts.

Invariant: nothing is read but names of files: `start_from.py` reads the weights when the stage comes, and needs torch.
"""

from __future__ import annotations

from pathlib import Path

from services.learner.manifest import MANIFEST
from shared.errors import ConfigError
from shared.settings import Settings


def check_sources(settings: Settings) -> None:
    """What a later stage begins with is there. A place in the run's own store may be filled by then, and a remote one
    is looked at when its turn comes. Raises `ConfigError`."""
    own = settings.storage_uri.removeprefix("file://")
    for stage in settings.stages:
        place = stage.start_from.removeprefix("file://")
        if place and "://" not in place and not Path(place).absolute().is_relative_to(own):
            known = Path(place)
            if not any((known / name).is_file() for name in (MANIFEST, "config.json")):
                raise neither(stage.start_from)


def neither(source: str) -> ConfigError:
    return ConfigError(
        f"start_from {source!r} is no checkpoint (no {MANIFEST}) and no Hugging Face folder (no config.json); "
        "a checkpoint is a folder such as runs/<name>/objects/checkpoints/<name>/00000012"
    )
