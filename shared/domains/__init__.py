"""The domain matrix: one folder a family, each with its generator, verifier and the answers that try it."""
