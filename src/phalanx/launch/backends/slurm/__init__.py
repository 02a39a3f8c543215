from phalanx.launch.backends.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
