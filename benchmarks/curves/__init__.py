"""Reward curves of our learner against TRL's GRPOTrainer: the same model, prompts, objective and numbers.

`python -m benchmarks.curves [--seeds 3] [--steps 80] [model]`.

* Tasks: a contextual bandit (eight prompts, ten arms, each a token; every prompt has its own order of pays) from
  random weights, and one-digit sums from weights that a few demonstrations have taught to be right at times.
* Ours: `Trainer` with its intake, batches sampled by the `transformers` engine, new weights loaded after every step,
  in one process and without a broker.
* TRL's: `GRPOTrainer` with its own generation; loss_type "grpo", no KL, one update a batch.

Both take the same prompts in the same order, the same group size, AdamW, rate, clipping and temperature. A curve is
the mean reward of each step's attempts before its update; `area` is its mean, `final` that of its last sixth. The
spread is the standard deviation over seeds, `noise` the standard error of the difference of the two means.

TRL is no dependency: `TEMPER_BENCH_TRL_PYTHON` names an interpreter that has it (or there is one in `.venv-trl`).
Without it our side runs alone, and says so.
"""
