"""The checkpoints of a run, for people: what there is, whether it is whole, and a model folder made of one."""
