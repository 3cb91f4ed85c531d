"""A whole run whose weights, checkpoints and large bodies lie in S3: interrupted, resumed, audited, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, audited, temper
from tests.s3 import BUCKET, s3_server

pytestmark = pytest.mark.slow


def test_a_run_over_s3_resumes_and_leaves_nothing_on_this_disk(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    with s3_server() as access, LocalRun(tmp_path, model, sft_steps=3, rl_steps=4) as run:
        # Small enough that trajectories of this model travel by ticket.
        access |= {"TEMPER_STORAGE__URI": f"s3://{BUCKET}/runs", "TEMPER_BUS__CLAIM_CHECK_BYTES": "1024"}
        run.start(**access).wait_for_step(4)
        run.interrupt()
        run.wait()
        assert run.start(**access).wait() == 0
        assert "every promise holds" in audited(run, **access)
        assert not list(run.folder.rglob("*.safetensors")) and not (run.folder / "objects").exists()
        swept = temper("storage", "sweep", "--config", str(run.folder / "run.toml"), "--json", **access)
        assert swept.returncode == 0, swept.stderr
        bodies = json.loads(swept.stdout)[0]
        assert bodies["kind"] == "bodies" and bodies["objects"] > 0 and bodies["removed"] == 0
        out = tmp_path / "exported"
        exported = temper("checkpoint", "export", f"{run.folder}@last", str(out), **access)
        assert exported.returncode == 0, exported.stderr
        assert (out / "model.safetensors").is_file()
