"""`temper audit`: proves from topics, checkpoints and traces that a run kept its promises."""
