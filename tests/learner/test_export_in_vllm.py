"""An exported checkpoint in vLLM, as somebody else would load it: each token that vLLM takes is the one
that transformers would have taken after the same tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_checkpoint_commands import a_run, temper
from transformers import AutoModelForCausalLM

from tests.rollout.engines.little_model import POSITIONS, VOCABULARY, make_little_model
from tests.rollout.engines.subjects import missing

TOKENS = 24
NEAR = 0.01
"""Of log-probabilities: two tokens that are nearer than this are equally likely to kernels that add in other orders."""


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    yield


def shortfall(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> float:
    """By how much the least fitting token of a greedy answer is less likely than the model's own choice there."""
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    chosen = logprobs[torch.arange(len(answer)), torch.tensor(answer)]
    return float((logprobs.max(-1).values - chosen).max())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("quiet")
def test_an_export_answers_in_vllm_as_in_transformers(tmp_path: Path) -> None:
    if reason := missing("vllm"):
        pytest.skip(reason)
    from vllm import LLM, SamplingParams

    settings, _ = a_run(tmp_path, make_little_model(tmp_path / "models"))
    made = tmp_path / "exported"
    result = temper("checkpoint", "export", f"{settings.run_folder}@last", made)
    assert result.exit_code == 0, result.output
    reference = AutoModelForCausalLM.from_pretrained(made, dtype="auto", local_files_only=True).eval()
    numbers = torch.Generator().manual_seed(11)
    prompts = [torch.randint(3, VOCABULARY, (length,), generator=numbers) for length in (1, 7, 33, 64)]
    llm = LLM(str(made), max_model_len=POSITIONS, kv_cache_memory_bytes=1 << 26, enforce_eager=True)
    try:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt.tolist()} for prompt in prompts],
            SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
            use_tqdm=False,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    assert len({tuple(answer) for answer in answers}) > 1, "all answers are one: nothing would show"
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == TOKENS
        assert shortfall(reference, prompt.tolist(), answer) < NEAR
