"""One thread for torch: these models are so small that threads only wait for each other (a test of 0.5 s took 48 s on
two busy cores). No clock for property tests: on such cores they would fail for being slow."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")
