"""Engines: what turns prompts into sampled tokens."""
