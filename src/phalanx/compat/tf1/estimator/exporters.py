"""Exporters: what `train_and_evaluate` exports after an evaluation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf


class Exporter:
    """Exports a model after an evaluation; derive from it to write another."""

    @property
    def name(self) -> str:
        """The name of the directory of its exports, below `model_dir/export`."""
        raise NotImplementedError

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> Any:
        """Export a checkpoint.

        Args:
            estimator: The estimator.
            export_path: The directory for the exports.
            checkpoint_path: The checkpoint that was evaluated.
            eval_result: The metrics of the evaluation.
            is_the_final_export: Whether training is over.

        Returns:
            The path of the export, or None if nothing was exported.
        """
        raise NotImplementedError


class SavedModelExporter(Exporter):
    """Exports SavedModels; the exporters below say when.

    Args:
        name: The directory of the exports, below `model_dir/export`.
        serving_input_receiver_fn: Returns a `ServingInputReceiver`.
        assets_extra: Files to copy into `assets.extra`, by their names there.
        as_text: Whether to write the graph as text.
        exports_to_keep: How many exports to keep; None keeps all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(
                f"exports_to_keep is {exports_to_keep}: it must be at least 1, or None"
            )
        self._name = name
        if not callable(serving_input_receiver_fn):
            raise TypeError(
                f"{type(self).__name__}: serving_input_receiver_fn is "
                f"{serving_input_receiver_fn!r}: pass a function that returns a "
                "ServingInputReceiver"
            )
        self._receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._keep = exports_to_keep
        self._written: dict[tuple[str, str], Any] = {}

    @property
    def name(self) -> str:
        return self._name

    def write(self, estimator: Any, export_path: str, checkpoint_path: str) -> Any:
        """Export a checkpoint, whether or not it is time to; delete the oldest exports."""
        # The last checkpoint may be exported once more when training is over.
        if (export_path, checkpoint_path) in self._written:
            return self._written[export_path, checkpoint_path]
        written = estimator.export_saved_model(
            export_path,
            self._receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        if self._keep is not None:
            names = (each.rstrip("/") for each in tf.gfile.ListDirectory(export_path))
            stamps = sorted((each for each in names if each.isdecimal()), key=int)
            for each in stamps[: -self._keep]:
                tf.gfile.DeleteRecursively(f"{export_path}/{each}")
        self._written = {(export_path, checkpoint_path): written}
        return written


class FinalExporter(SavedModelExporter):
    """Exports once, when training is over; see `SavedModelExporter`."""

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> Any:
        if not is_the_final_export:
            return None
        return self.write(estimator, export_path, checkpoint_path)


class LatestExporter(SavedModelExporter):
    """Exports after every evaluation, and keeps the latest exports; see `SavedModelExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> Any:
        return self.write(estimator, export_path, checkpoint_path)


def _has_smaller_loss(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(SavedModelExporter):
    """Exports after an evaluation that is better than all before.

    Args:
        name: The directory of the exports, below `model_dir/export`.
        serving_input_receiver_fn: Returns a `ServingInputReceiver`.
        event_file_pattern: The summaries of earlier evaluations, relative to model_dir: after a
            restart, the best of them must be surpassed.
        compare_fn: Whether `current_eval_result` is better than `best_eval_result`.
        assets_extra: Files to copy into `assets.extra`, by their names there.
        as_text: Whether to write the graph as text.
        exports_to_keep: How many exports to keep; None keeps all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _has_smaller_loss,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._pattern = event_file_pattern
        self._is_better = compare_fn
        self._best: Mapping[str, Any] | None = None
        self._has_read = False

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> Any:
        if eval_result is None:
            return None
        if not self._has_read:
            self._has_read = True
            self._best = self._read_best(estimator.model_dir, eval_result)
        is_better = self._best is None or self._is_better(
            best_eval_result=self._best, current_eval_result=eval_result
        )
        if not is_better and (export_path, checkpoint_path) not in self._written:
            return None
        self._best = eval_result
        return self.write(estimator, export_path, checkpoint_path)

    def _read_best(self, model_dir: str, current: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the best of the earlier evaluations; the current one is already in the files."""
        if self._pattern is None:
            return None
        best = None
        for step, values in read_evaluations(f"{model_dir}/{self._pattern}"):
            if step >= int(current["global_step"]):
                continue
            found = {**values, "global_step": step}
            if best is None or self._is_better(best_eval_result=best, current_eval_result=found):
                best = found
        return best


def read_evaluations(pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the metrics of every evaluation in the summaries that match a pattern."""
    for path in sorted(tf.gfile.Glob(pattern)):
        for event in tf.train.summary_iterator(path):
            values = {
                each.tag: each.simple_value
                for each in event.summary.value
                if each.HasField("simple_value")
            }
            if "loss" in values:
                yield event.step, values


def list_exporters(exporters: Any) -> tuple[Exporter, ...]:
    """Return one exporter, several, or none as a tuple, and check them."""
    is_several = isinstance(exporters, Iterable) and not isinstance(exporters, (str, Exporter))
    listed = tuple(exporters) if is_several else () if exporters is None else (exporters,)
    for each in listed:
        if not isinstance(each, Exporter):
            raise TypeError(f"{each!r} is not an exporter: derive it from tf.estimator.Exporter")
    names = [each.name for each in listed]
    if len(set(names)) < len(names):
        raise ValueError(f"the exporters are named {names}: every name must occur once")
    return listed


def choose_export(
    estimator: Any, exporters: Sequence[Exporter]
) -> Callable[[str, str], Any] | None:
    """Return what writes a SavedModel as the first exporter does, whose arguments are paths."""
    writing = [each for each in exporters if isinstance(each, SavedModelExporter)]
    return partial(writing[0].write, estimator) if writing else None
