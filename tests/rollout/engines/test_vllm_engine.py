"""What is the vllm engine's own: its process may be killed, and it may be missing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from services.rollout.engines.base import EngineDiedError, GenerationFault
from shared.errors import DependencyError
from tests.rollout.engines.conftest import open_vllm
from tests.rollout.engines.subjects import long_request, missing, request, sampled


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_process_ends_the_engine_and_fails_what_ran(little_folder: Path) -> None:
    if reason := missing("vllm"):
        pytest.skip(reason)
    engine = open_vllm(little_folder)

    async def run() -> Any:
        await engine.load_policy(little_folder / "model.safetensors", 0, None)
        watching = asyncio.create_task(engine.watch())
        running = asyncio.create_task(engine.generate(long_request(1)))
        await sampled(engine, 5)
        for process in engine._llm.engine_core.resources.engine_manager.processes:  # type: ignore[attr-defined]
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match="the vllm engine died"):
            await asyncio.wait_for(watching, 60)
        with pytest.raises(GenerationFault):
            await asyncio.wait_for(running, 60)
        with pytest.raises(GenerationFault, match="died"):
            await engine.generate(request(2))

    try:
        asyncio.run(run())
    finally:
        engine.close()


def test_a_missing_package_is_said_in_one_line(little_folder: Path) -> None:
    if not missing("vllm"):
        pytest.skip("engine vllm: is installed, so nothing is missing here")
    with pytest.raises(DependencyError, match=r"cannot be imported .* install the extra temper-rl\[vllm\]"):
        open_vllm(little_folder)
