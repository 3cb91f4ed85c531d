"""Typed messaging over Kafka topics: manifest, producer, worker loop, retries and dead letters."""
