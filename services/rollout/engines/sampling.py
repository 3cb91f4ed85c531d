"""From logits to a token and its exact log-probability.

Invariant: the log-probability returned is of the token that was drawn, under the distribution that the logits give
without temperature or truncation; a token of probability zero is never drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 256


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row: int64[b], and its log-probability: float32[b].

    logits float32[b, v]; temperature float32[b], 0 is greedy; top_p float32[b] in (0, 1]; uniform float64[b] in
    [0, 1). A row whose logits are no numbers gets a log-probability that is not finite: the caller refuses it.
    """
    normaliser = torch.logsumexp(logits, dim=-1)
    ids = logits.argmax(dim=-1)
    drawn = (temperature > 0).nonzero().squeeze(-1)
    if drawn.numel():
        every = drawn.numel() == len(logits)
        chosen = logits if every else logits[drawn]
        weights = torch.exp((chosen - chosen.amax(dim=-1, keepdim=True)) / temperature[drawn].unsqueeze(-1))
        _keep_nucleus(weights, top_p[drawn])
        ids[drawn] = inverse_cdf(weights, uniform[drawn])
    return ids, logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - normaliser


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """int64[b]: index drawn in proportion to weights float32[b, v] (not normalised) by uniform float64[b].

    Two levels, blocks and then within one, so that the running sums stay short: exact to float64 in the first, and
    a vocabulary is read once.
    """
    rows, size = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    sums = padded.sum(dim=-1, dtype=torch.float64)
    ends = sums.cumsum(dim=-1)
    total = ends[:, -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(-1)
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[-1] - 1)
    rest = target - (ends.gather(-1, block) - sums.gather(-1, block))
    inside = padded[torch.arange(rows, device=weights.device), block.squeeze(-1)]
    offset = torch.searchsorted(inside.to(torch.float64).cumsum(dim=-1), rest, right=True)
    # Rounding may carry `rest` past the block's own sum: the last token that has any weight is meant.
    places = torch.arange(_BLOCK, device=weights.device)
    last = torch.where(inside > 0, places, 0).amax(dim=-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(offset, last)).squeeze(-1)


def _keep_nucleus(weights: Tensor, top_p: Tensor) -> None:
    """Zeroes, in place, what lies outside the smallest set of most likely tokens whose share reaches top_p.

    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    rows = (top_p < 1).nonzero().squeeze(-1)
    if not rows.numel():
        return
    ordered, places = weights[rows].sort(dim=-1, descending=True)
    share = ordered.cumsum(dim=-1, dtype=torch.float64)
    before = share - ordered
    outside = before >= top_p[rows].unsqueeze(-1) * share[:, -1:]
    kept = torch.zeros_like(ordered).scatter_(-1, places, ordered.masked_fill(outside, 0.0))
    weights[rows] = kept
