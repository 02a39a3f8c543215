"""Faults on purpose: a seeded plan of them, applied to a job on this machine."""
