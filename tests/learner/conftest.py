"""One thread for torch: these models are so small that threads only wait for each other (a test of 0.5 s took 48 s on
two busy cores)."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
