"""Attempts by an agent program of somebody else's: it asks the policy over HTTP, and every token is recorded."""
