"""Measurements that print one JSON line a figure."""
