"""Supervised processes on this machine, which several backends use."""
