"""The Slurm backend: a batch script, submitted with `sbatch`."""

from phalanx.launch.backends.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
