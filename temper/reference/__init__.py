"""What a run's TOML may say, read from the models that check it."""
