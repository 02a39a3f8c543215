"""Closes the ports of a task to everybody but its job; SECURITY.md explains the rules.

TensorFlow's servers listen on all interfaces, and have no option to change that. preload.c is
loaded into the program of a task first, and changes what `bind` and `accept` do there.
"""
