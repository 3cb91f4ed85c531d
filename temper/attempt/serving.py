"""An engine that serves one policy to one command.

Invariant: it is the engine, the codec and the weights that a rollout process of the same settings would have; a file of
weights is checked against its digest before it is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine
from services.rollout.opening import open_parts
from shared.errors import DependencyError
from shared.plain_errors import one_line
from shared.settings import Settings, load_settings, parse_settings
from shared.storage import ObjectStore
from shared.weights.adapter import Base
from temper.policies import FolderPolicy, RunPolicy

MAX_TOKENS = 512
"""Of a turn, where no run says."""


@dataclass(frozen=True, slots=True)
class Serving:
    engine: Engine
    codec: ChatCodec


def settings_for(
    policy: RunPolicy | FolderPolicy, changes: dict[str, dict[str, Any]], config: Path | None = None
) -> Settings:
    """Those of `config` (but for the model), of the policy's run, or such as a folder alone can have; `changes` by
    section. Raises `ConfigError`."""
    if config is not None:
        document = load_settings(config).model_dump(mode="json", exclude_unset=True)
    elif isinstance(policy, RunPolicy):
        document = policy.settings.model_dump(mode="json")
    else:
        document = {
            "run": {"name": "attempt", "folder": tempfile.gettempdir()},
            "domains": [{"name": "arithmetic", "max_tokens": MAX_TOKENS}],
            "stages": [{"kind": "rl", "steps": 1}],
        }
    if isinstance(policy, RunPolicy):
        document["model"] = policy.settings.model.model_dump(mode="json")
    else:
        document["model"] = {"path": str(policy.folder.absolute()), "dtype": _dtype(policy.folder)}
    for section, values in changes.items():
        document.setdefault(section, {}).update(values)
    return parse_settings(document, source=f"policy {policy}")


@contextlib.asynccontextmanager
async def serving(settings: Settings, policy: RunPolicy | FolderPolicy) -> AsyncIterator[Serving]:
    """Raises `DependencyError`, `StorageError` and `AttestationError` where the policy cannot be served."""
    gated, codec = await asyncio.to_thread(open_parts, settings)
    try:
        with tempfile.TemporaryDirectory(prefix="temper-policy-") as folder:
            weights = await asyncio.to_thread(_weights, settings, policy, Path(folder))
            await gated.load_policy(weights, policy.step if isinstance(policy, RunPolicy) else 0, None)
        yield Serving(gated, codec)
    finally:
        await asyncio.to_thread(gated.close)


def _weights(settings: Settings, policy: RunPolicy | FolderPolicy, spare: Path) -> Path:
    """One file in the run's dtype."""
    if isinstance(policy, RunPolicy):
        weights = ObjectStore(settings.storage_uri).fetch(policy.uri, policy.sha256, spare)
        return Base(Path(settings.model.path), settings.model.dtype).whole(
            weights, spare / "whole.safetensors"
        )
    if settings.rollout.engine == "instant":
        return policy.folder
    one = policy.folder / "model.safetensors"
    if one.is_file() and _only_dtype(one) == {"float32": "F32", "bfloat16": "BF16"}[settings.model.dtype]:
        return one
    return _written(settings, spare / "weights.safetensors")


def _written(settings: Settings, place: Path) -> Path:
    """Several files, or of another dtype: written anew as one. Tensors that share their storage are written once."""
    from safetensors.torch import save_file

    from services.rollout.engines.decoder import load_model

    state = load_model(settings.model.path, settings.model.dtype, "cpu").state_dict()
    once = {tensor.data_ptr(): name for name, tensor in reversed(state.items())}
    try:
        save_file({name: state[name].contiguous() for name in once.values()}, str(place))
    except OSError as error:
        raise DependencyError(f"{place}: the weights cannot be written: {one_line(error)}") from error
    return place


def _only_dtype(file: Path) -> str:
    """The dtype that all tensors of a file have; empty where there are several, or the file is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="numpy") as opened:
            kinds = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return ""  # `load_model` says what is wrong with it
    return str(kinds.pop()) if len(kinds) == 1 else ""


def _dtype(folder: Path) -> str:
    """bfloat16 where the model says so; everything else is served as float32."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = config.get("dtype") or config.get("torch_dtype")
    except (OSError, ValueError, AttributeError):
        return "float32"  # `check_model_folder` says what is wrong with it
    return "bfloat16" if found == "bfloat16" else "float32"
