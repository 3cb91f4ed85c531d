"""What the four services agree on: messages, bus, storage, telemetry, domains, verification, settings."""
