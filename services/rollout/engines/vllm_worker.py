"""What vLLM's own worker process does for us: an extension of its worker, called by name over `collective_rpc`.

Invariant: after `take_weights` every layer computes with the new weights, also one that keeps a packed copy of a tensor
that belongs to another. On a processor each linear layer packs its weights for oneDNN, and a head that is tied to the
embeddings packs those. vLLM's reload packs again only layers that a file has tensors for, and for a tied head there are
none: it went on with the old output weights (0.6 in the log-probabilities of SmolLM2 at 1 % of noise).
"""

from __future__ import annotations

from typing import Any

EXTENSION = f"{__name__}.TakesWeights"


class TakesWeights:
    """Mixed into vLLM's worker class. vLLM refuses names that the worker has already."""

    def take_weights(self: Any, file: str) -> None:
        """Reads a safetensors file into the model that runs, between two of its steps."""
        from safetensors import safe_open
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            UnquantizedEmbeddingMethod,
        )

        with safe_open(file, framework="pt") as tensors:
            names = sorted(tensors.keys())  # a layer's tensors together: it is packed when its last has come
            self.reload_weights(weights_iterator=((name, tensors.get_tensor(name)) for name in names))
        for layer in self.get_model().modules():
            # On an accelerator this does nothing; a quantized head has tensors of its own, and was processed.
            if isinstance(layer, ParallelLMHead) and isinstance(
                layer.quant_method, UnquantizedEmbeddingMethod
            ):
                layer.quant_method.process_weights_after_loading(layer)
