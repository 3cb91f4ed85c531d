"""Files of weights, and what changed from one version of a policy to the next."""
