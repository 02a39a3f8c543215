"""tf.contrib.learn.RunConfig."""

import inspect
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator import run_config

_DEFAULT_SEED = 1


class Environment:
    """The names of environments in TF_CONFIG."""

    CLOUD = "cloud"
    GOOGLE = "google"
    LOCAL = "local"


class RunConfig(run_config.RunConfig):
    """As `tf.estimator.RunConfig`, with settings of the session.

    Args:
        master: The target of training sessions; by default from TF_CONFIG.
        num_cores: The number of threads; 0 lets TensorFlow decide.
        log_device_placement: Whether to log the device of each operation.
        gpu_memory_fraction: The part of a GPU's memory that this process may take.
        tf_random_seed: The seed of the graph.
        save_summary_steps: Write summaries every so many steps.
        save_checkpoints_secs: Save every so many seconds; 600 if neither is set.
        save_checkpoints_steps: Save every so many steps.
        keep_checkpoint_max: How many checkpoints to keep.
        keep_checkpoint_every_n_hours: Keep one checkpoint for every so many hours besides.
        log_step_count_steps: Log the loss and the speed every so many steps.
        protocol: The protocol of the server.
        evaluation_master: The target of evaluation sessions; empty evaluates in this process.
        model_dir: The directory of checkpoints and summaries.
        session_config: A `tf.ConfigProto`; the settings of the session above are then not used.
    """

    def __init__(
        self,
        master: str | None = None,
        num_cores: int = 0,
        log_device_placement: bool = False,
        gpu_memory_fraction: float = 1,
        tf_random_seed: int | None = _DEFAULT_SEED,
        save_summary_steps: int | None = 100,
        save_checkpoints_secs: Any = run_config.UNSET,
        save_checkpoints_steps: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        protocol: str | None = None,
        evaluation_master: str = "",
        model_dir: Any = None,
        session_config: Any = None,
        **unknown: Any,
    ) -> None:
        parameters = inspect.signature(RunConfig).parameters
        run_config.refuse_unknown(unknown, [*parameters][:-1])
        if session_config is None:
            session_config = tf.ConfigProto(
                allow_soft_placement=True,
                log_device_placement=log_device_placement,
                inter_op_parallelism_threads=num_cores,
                intra_op_parallelism_threads=num_cores,
                gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=gpu_memory_fraction),
            )
        secs = save_checkpoints_secs
        if save_checkpoints_steps is not None and secs is run_config.UNSET:
            secs = None
        super().__init__(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_secs=secs,
            save_checkpoints_steps=(
                run_config.UNSET if save_checkpoints_steps is None else save_checkpoints_steps
            ),
            session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            protocol=protocol,
        )
        if master is not None:
            self._master = master
        self._evaluation_master = evaluation_master

    @property
    def environment(self) -> str:
        """`local`, or `cloud` on a cluster: from TF_CONFIG."""
        return self._tf_config.environment

    @property
    def tf_config(self) -> Any:
        """The `tf.ConfigProto` of sessions, under its older name."""
        return self.session_config

    def uid(self, whitelist: Any = None) -> str:
        """Return a text that is equal for equal settings.

        Args:
            whitelist: Settings that do not count.

        Returns:
            The text.
        """
        left = set(whitelist or ())
        return repr(sorted((k, str(v)) for k, v in self._settings.items() if k not in left))


ClusterConfig = RunConfig
