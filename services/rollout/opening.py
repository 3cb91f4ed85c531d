"""Model, engine and tokenizer, made before the service takes work.

Invariant: while they are made the heartbeats say so, and where they cannot be made the last one says why.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine
from services.rollout.engines.gated import GatedEngine
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.contracts import Heartbeat
from shared.model_folder import check_model_folder
from shared.settings import Settings


def open_parts(settings: Settings) -> tuple[GatedEngine, ChatCodec]:
    """Engine and codec of the settings: loads the model, so call it in a thread.

    Raises `DependencyError` (no model there, a damaged one, no such device), `ConfigError`.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # its report of a misfit is a table; ours is one line
    if settings.rollout.engine != "instant":
        check_model_folder(settings.model.path)
    codec = ChatCodec.open(settings.model.path, settings.model.chat_template)
    return GatedEngine(open_engine(settings, codec), settings.rollout.follow), codec


def open_engine(settings: Settings, codec: ChatCodec) -> Engine:
    """The one that `rollout.engine` names; its libraries are imported here and nowhere else."""
    if settings.rollout.engine == "instant":
        from services.rollout.engines.instant import InstantEngine

        return InstantEngine.of_digits(codec.encode, codec.stop_ids)
    if settings.rollout.engine == "openai":
        from services.rollout.engines.openai import OpenAiEngine

        return OpenAiEngine.open(settings, codec.encode)
    if settings.rollout.engine == "vllm":
        from services.rollout.engines.vllm import VllmEngine

        return VllmEngine.open(settings)
    from services.rollout.engines.transformers import TransformersEngine

    return TransformersEngine.open(settings)


async def open_and_say_so(settings: Settings, worker_id: str) -> tuple[GatedEngine, ChatCodec]:
    """`open_parts` takes seconds, or fails: the heartbeats say which."""
    said: dict[str, Any] = {"state": "starting", "waits_for": "the model"}
    producer = TypedProducer(settings, worker_id)
    heartbeat = HeartbeatLoop(
        producer,
        TopicNames(settings.bus.namespace).workers,
        lambda: Heartbeat(
            run_id=settings.run.name,
            worker_id=worker_id,
            service="rollout",
            **said,
        ),
        settings.telemetry.heartbeat_s,
    )
    done = asyncio.Event()
    beating = asyncio.create_task(heartbeat.run(done))
    try:
        return await asyncio.to_thread(open_parts, settings)
    except asyncio.CancelledError:
        said.update(state="stopped", waits_for="")
        raise
    except Exception as error:
        said.update(state="failed", waits_for=str(error))
        raise
    finally:
        done.set()
        await beating
        await producer.close()
