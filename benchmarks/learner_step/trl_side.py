"""TRL's side: `python trl_side.py SPEC.json`, with an interpreter that has TRL. It imports nothing of this project but
`serve.py` beside it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from serve import Line
from transformers import AutoTokenizer, TrainerCallback


class Turns(TrainerCallback):
    """A step is taken when it is asked for."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.norm = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._line.asked():
            sys.exit(0)
        self._line.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._line.end(self.norm)


def main(path: str) -> None:
    line, spec = Line(), json.loads(Path(path).read_text())
    torch.set_num_threads(spec["threads"])
    turns = Turns(line)
    with tempfile.TemporaryDirectory() as folder:
        trainer = {"grpo": grpo, "sft": sft, "dpo": dpo}[spec["kind"]](spec, folder)
        clip = trainer.accelerator.clip_grad_norm_

        def clipped(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            turns.norm = float(norm)
            return norm

        trainer.accelerator.clip_grad_norm_ = clipped
        trainer.add_callback(turns)
        line.say(ready=True, trl=trl.__version__)
        trainer.train()


def common(spec: dict[str, Any], folder: str, rows: int) -> dict[str, Any]:
    """Of every trainer's configuration; what is not here is TRL's default."""
    size = spec["device_batch"] or rows
    return {
        "output_dir": folder,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": max(1, rows // size),
        "max_steps": 10_000,
        "learning_rate": spec["learning_rate"],
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": spec["checkpointing"],
        "model_init_kwargs": {"dtype": "float32"},
        "logging_steps": 1_000_000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def grpo(spec: dict[str, Any], folder: str) -> Any:
    groups = spec["groups"]
    size = len(groups[0]["answers"])
    rewards: list[float] = []

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Prompts come once for each answer, in order."""
        seen: dict[str, int] = {}
        prompt_ids, completion_ids = [], []
        rewards.clear()
        for prompt in prompts:
            group = groups[int(prompt)]
            index = seen[prompt] = seen.get(prompt, -1) + 1
            prompt_ids.append(group["prompt"])
            completion_ids.append(group["answers"][index])
            rewards.append(group["rewards"][index])
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    config = trl.GRPOConfig(
        **common(spec, folder, sum(len(group["answers"]) for group in groups)),
        num_generations=size,
        max_completion_length=max(len(answer) for group in groups for answer in group["answers"]),
        beta=spec["kl"],
        loss_type="grpo",
    )
    return trl.GRPOTrainer(
        model=spec["model"],
        args=config,
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
        reward_funcs=lambda prompts, **_: list(rewards),
        rollout_func=rollout,
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(groups))]),
    )


def sft(spec: dict[str, Any], folder: str) -> Any:
    rows = [
        {"input_ids": [*g["prompt"], *g["answers"][0]], "labels": [-100] * len(g["prompt"]) + g["answers"][0]}
        for g in spec["groups"]
    ]
    config = trl.SFTConfig(**common(spec, folder, len(rows)), max_length=None)
    return trl.SFTTrainer(
        model=spec["model"],
        args=config,
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
        train_dataset=Dataset.from_list(rows),
    )


class Prepared(trl.DPOTrainer):  # type: ignore[misc]
    """Its data set is token ids already."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def dpo(spec: dict[str, Any], folder: str) -> Any:
    rows = [
        {"prompt_ids": g["prompt"], "chosen_ids": g["answers"][0], "rejected_ids": g["answers"][1]}
        for g in spec["groups"]
    ]
    config = trl.DPOConfig(**common(spec, folder, len(rows)), beta=spec["kl"], max_length=None)
    return Prepared(
        model=spec["model"],
        args=config,
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
        train_dataset=Dataset.from_list(rows),
    )


if __name__ == "__main__":
    main(sys.argv[1])
