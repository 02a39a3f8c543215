"""Processes of this machine, run to the end of their job: what several launchers stand on."""
