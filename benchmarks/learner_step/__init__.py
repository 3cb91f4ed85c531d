"""An optimizer step of the learner against TRL's trainers: tokens/s, peak memory, and memory by length.

Both sides run in processes of their own with the same weights (float32), the same token ids, the same threads. A step
is what lies between a batch of judged tokens and changed weights: laying it out, the reference's log-probabilities
where there is a KL, forward, backward, clipping, AdamW. Sampling and rewards are in neither.

* Ours: `batch_of` and `Step.take`, as the trainer calls them.
* TRL's: `trainer.train()` itself, between its on_step_begin and on_step_end. `GRPOTrainer` gets its completions from
  its public `rollout_func` and its rewards from a lookup, so tokenizing, generating and judging cost it nothing;
  advantages, the reference's log-probabilities and the loss are its own code, with its own chunked head. `SFTTrainer`
  and `DPOTrainer` get the token ids. The whole batch is one device batch (as its defaults have it) unless a figure
  says `trl_device_batch`.

Neither side checkpoints activations. Both say the norm of the gradient they found: equal norms, equal work. Sides
take turns, the first step of each is not counted, and a ratio is of medians. CPU seconds are beside wall seconds: on
a machine that others use they are the ones to read. Peak memory is the
most that was resident while a process took its second step (`VmHWM`, Linux): the optimizer's moments are there.

TRL is no dependency: `TEMPER_BENCH_TRL_PYTHON` names an interpreter that has it, or `make bench-trl` makes one in
`.venv-trl`. Without it the comparisons are named and not run.
"""
