"""Looks at the verifier's own work: second checks, and what only shows across attempts."""
