"""Launching jobs: jobs, plans, launchers and the job store, outside of the training processes."""
