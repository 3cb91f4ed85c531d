"""From logits to a token and its exact log-probability.

Invariant: the log-probability returned is of the token that was drawn, under the distribution that the logits give
without temperature or truncation; a token of probability zero is never drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 256
_CHUNK = 1 << 19  # logits at a time: what is made of them stays in a core's cache


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row: int64[b], and its log-probability: float32[b].

    logits float32[b, v]; temperature float32[b], 0 is greedy; top_p float32[b] in (0, 1]; uniform float64[b] in
    [0, 1). A row whose logits are no numbers gets a log-probability that is not finite: the caller refuses it.
    """
    rows = max(1, _CHUNK // logits.shape[-1])
    chunks = [slice(start, start + rows) for start in range(0, len(logits), rows)]
    parts = [_sample_rows(logits[at], temperature[at], top_p[at], uniform[at]) for at in chunks]
    return torch.cat([ids for ids, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def _sample_rows(
    logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    sums = _block_sums(weights)
    normaliser = sums.sum(dim=-1, dtype=torch.float64).log()
    greedy = temperature == 0
    if bool(greedy.all()):
        ids = shifted.argmax(dim=-1)
    else:
        if bool((temperature != 1).any()) or bool((top_p < 1).any()):
            heat = temperature.masked_fill(greedy, 1.0).unsqueeze(-1)
            weights = _nucleus((shifted / heat).exp_(), top_p)
            sums = _block_sums(weights)
        ids = _inverse_cdf(weights, sums, uniform)
        if bool(greedy.any()):
            ids = torch.where(greedy, shifted.argmax(dim=-1), ids)
    picked = shifted.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return ids, (picked - normaliser).to(torch.float32)


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """int64[b]: index drawn in proportion to weights float32[b, v] (not normalised) by uniform float64[b].

    Two levels, blocks and then one block, so that running sums are short and a vocabulary is read once.
    """
    return _inverse_cdf(weights, _block_sums(weights), uniform)


def _block_sums(weights: Tensor) -> Tensor:
    """float32[b, ceil(v / 256)]."""
    spare = -weights.shape[-1] % _BLOCK
    padded = torch.nn.functional.pad(weights, (0, spare)) if spare else weights
    return padded.view(len(weights), -1, _BLOCK).sum(dim=-1)


def _inverse_cdf(weights: Tensor, sums: Tensor, uniform: Tensor) -> Tensor:
    rows, size = weights.shape
    ends = sums.cumsum(dim=-1, dtype=torch.float64)
    total = ends[:, -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(-1)
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[-1] - 1)
    rest = target - (ends.gather(-1, block) - sums.gather(-1, block))
    places = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(-1, places.clamp(max=size - 1)).masked_fill_(places >= size, 0.0)
    offset = torch.searchsorted(inside.to(torch.float64).cumsum(dim=-1), rest, right=True)
    # Rounding may carry `rest` past the block's own sum: the last token that has any weight is meant.
    numbers = torch.arange(_BLOCK, device=weights.device).expand(rows, -1)
    last = torch.where(inside > 0, numbers, 0).amax(dim=-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(offset, last)).squeeze(-1)


def _nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """`weights` with zeroes outside the smallest set of most likely tokens whose share reaches top_p; in place.

    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    rows = (top_p < 1).nonzero().squeeze(-1)
    if rows.numel():
        ordered, places = weights[rows].sort(dim=-1, descending=True)
        share = ordered.cumsum(dim=-1, dtype=torch.float64)
        outside = share - ordered >= top_p[rows].unsqueeze(-1) * share[:, -1:]
        weights[rows] = torch.zeros_like(ordered).scatter_(-1, places, ordered.masked_fill(outside, 0.0))
    return weights
