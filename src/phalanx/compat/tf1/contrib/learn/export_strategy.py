"""tf.contrib.learn.ExportStrategy, and how programs made one."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from phalanx.compat.tf1.contrib.learn.models import adapt_receiver_fn
from phalanx.compat.tf1.estimator.exporters import LatestExporter


class ExportStrategy(NamedTuple):
    """Exports a model after an evaluation.

    Args:
        name: The directory of the exports, below `model_dir/export`.
        export_fn: Called with the estimator, the directory and the checkpoint.
        strip_default_attrs: Not used.
    """

    name: str
    export_fn: Callable[..., Any]
    strip_default_attrs: bool | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None = None,
        eval_result: Mapping[str, Any] | None = None,
    ) -> Any:
        """Export a checkpoint.

        Args:
            estimator: The estimator.
            export_path: The directory for the exports.
            checkpoint_path: The checkpoint; by default the latest.
            eval_result: The metrics of the evaluation.

        Returns:
            What the function returned.
        """
        return self.export_fn(estimator, export_path, checkpoint_path)


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    default_output_alternative_key: str | None = None,
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    strip_default_attrs: bool | None = None,
) -> ExportStrategy:
    """Return a strategy that writes a SavedModel.

    Args:
        serving_input_fn: Returns InputFnOps or a ServingInputReceiver.
        default_output_alternative_key: Not used: the export_outputs name the default.
        assets_extra: Files to copy into `assets.extra`, by their names there.
        as_text: Whether to write the graph as text.
        exports_to_keep: How many exports to keep; None keeps all.
        strip_default_attrs: Not used.

    Returns:
        The strategy; its name is `Servo`, as it was.
    """
    receiver_fn = adapt_receiver_fn(serving_input_fn)
    exporter = LatestExporter("Servo", receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(estimator: Any, export_path: str, checkpoint_path: str | None) -> Any:
        path = checkpoint_path or estimator.latest_checkpoint()
        return exporter.export(estimator, export_path, path, None, True)

    return ExportStrategy("Servo", export)
