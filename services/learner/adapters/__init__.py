"""Training low-rank adapters beside weights that stay as they are."""
