"""Runs one verifier as a process of its own: `python verifier_process.py settings.json worker-id`.

Prints the ids of its checking children once they live, so that a test can see them go.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from services.verifier.service import VerifierService
from shared.settings import Settings


async def main(settings: Settings, worker_id: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    service = VerifierService(settings, worker_id)
    running = asyncio.create_task(service.run(stop))
    while len(service._pool.pids) < settings.verifier.children and not running.done():
        await asyncio.sleep(0.02)
    print(json.dumps(service._pool.pids), flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(Settings.model_validate_json(Path(sys.argv[1]).read_text()), sys.argv[2]))
