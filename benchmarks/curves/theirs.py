"""TRL's side, run by TRL's own interpreter: plans as JSON lines on stdin, a curve for each on stdout.

Nothing of this project but `tasks.py` beside it is imported here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import tasks
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def curve(plan: tasks.Plan, folder: str) -> list[float]:
    """The mean reward of each step."""
    found: list[float] = []

    def judged(completions: list[Any], question: list[str], **_: Any) -> list[float]:
        answers = [completion[0]["content"] for completion in completions]
        rewards = [
            tasks.reward(plan.task, asked, answer) for asked, answer in zip(question, answers, strict=True)
        ]
        found.append(tasks.mean(rewards))
        return rewards

    asked = tasks.questions(plan)
    rows = [{"prompt": [{"role": "user", "content": text}], "question": text} for text in asked]
    batch = plan.prompts_per_step * plan.group_size
    arguments = GRPOConfig(
        output_dir=folder,
        seed=plan.seed,
        max_steps=plan.steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        num_generations=plan.group_size,
        max_completion_length=plan.max_tokens,
        shuffle_dataset=False,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=plan.max_gradient_norm,
        adam_beta1=0.9,
        adam_beta2=0.999,
        beta=0.0,
        epsilon=plan.epsilon,
        num_iterations=1,
        loss_type="grpo",
        scale_rewards="group",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(plan.model),
        reward_funcs=judged,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    return found


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no curve
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            found = curve(tasks.Plan(**json.loads(line)), folder)
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
