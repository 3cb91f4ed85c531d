"""The four deployables. They share nothing but Kafka topics and an object store."""
