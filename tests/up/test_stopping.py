"""Who is asked to stop before it has begun leaves at once: no drain time is waited for, no kill is needed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.settings import Settings
from shared.stopping import in_background, unless
from temper.cli.services import not_installed
from temper.models.tiny import make_tiny_model
from temper.up.resolved import to_toml
from tests.end_to_end.local_run import TEMPER


async def value(after: asyncio.Event | None = None) -> int:
    if after is not None:
        await after.wait()
    return 7


def test_work_is_returned_or_given_up() -> None:
    async def body() -> None:
        stop, never = asyncio.Event(), asyncio.Event()
        assert await unless(stop, value()) == 7
        asyncio.get_running_loop().call_later(0.01, stop.set)
        assert await unless(stop, value(never)) is None
        assert await unless(stop, value(never)) is None, "set before"
        assert len(asyncio.all_tasks()) == 1, "what was given up is gone"

    asyncio.run(body())


def test_what_the_work_raises_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("x")

    async def body() -> None:
        with pytest.raises(ValueError, match="x"):
            await unless(asyncio.Event(), fails())
        with pytest.raises(ValueError, match="y"):
            await in_background(lambda: int("y"))
        assert await in_background(lambda: 3) == 3

    asyncio.run(body())


def test_nobody_waits_for_a_background_thread() -> None:
    release = threading.Event()

    async def body() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        assert await unless(stop, in_background(release.wait)) is None

    asyncio.run(body())  # would hang for ever if the loop waited for its thread
    release.set()


def test_a_missing_library_is_a_missing_dependency() -> None:
    error = not_installed("rollout", ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert error.exit_code == 3
    assert str(error) == (
        "rollout: No module named 'torch'; install what it needs with `pip install 'temper-rl[rollout]'`"
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("service", ["rollout", "learner", "verifier", "scheduler"])
def test_a_service_that_still_starts_is_gone_long_before_its_drain_time(
    service: str, make_settings: Callable[..., Settings], tiny: Path, tmp_path: Path
) -> None:
    """At several moments of its start: imports, the model, the first words with the broker."""
    settings = make_settings(bus={"drain_s": 200.0}, model={"path": str(tiny)})
    path = tmp_path / "run.toml"
    path.write_text(to_toml(settings))
    for moment_s in (0.6, 1.5, 3.0):
        process = subprocess.Popen(
            [*TEMPER, service, "--config", str(path)], stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(moment_s)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
        # Before its handler is there it ends by the signal, which is as prompt.
        assert process.returncode in (0, -signal.SIGTERM) and "Traceback" not in said, said
