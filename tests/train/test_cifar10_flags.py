"""The flags of examples/cifar10, as people type them from old texts."""

import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/cifar10"


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE)
    modules = ("main", "contact_sheet", "experiment", "pictures")
    for each in modules:
        monkeypatch.delitem(sys.modules, each, raising=False)
    import main  # type: ignore[import-not-found]

    def parse_flags(flags: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["main.py", "--data_dir=data", *flags.split()])
        return main.parse_flags()

    yield parse_flags
    for each in modules:
        sys.modules.pop(each, None)


def test_every_spelling_is_read(parse: Any) -> None:
    for flags, name, value in (
        ("--num_gpus=2", "num_gpus", 2),
        ("--num-gpus 0", "num_gpus", 0),
        ("--is_cpu_ps=True", "variable_strategy", "CPU"),
        ("--is_cpu_ps=False", "variable_strategy", "GPU"),
        ("--is-cpu-ps", "variable_strategy", "CPU"),
        ("--variable_strategy GPU", "variable_strategy", "GPU"),
        ("--sync=True", "mode", "sync"),
        ("--sync=False", "mode", None),
        ("--sync True", "mode", "sync"),
        ("--sync", "mode", "sync"),
        ("--nosync", "mode", None),
        ("--job-dir=model", "model_dir", "model"),
        ("--job_dir model", "model_dir", "model"),
        ("--model_dir=model", "model_dir", "model"),
        ("--use-distortion-for-training=False", "use_distortion", False),
        ("--use-distortion-for-training True", "use_distortion", True),
        ("--use_distortion_for_training=True", "use_distortion", True),
        ("--nouse_distortion_for_training", "use_distortion", False),
        ("--log_device_placement=True", "log_device_placement", True),
        ("--train_steps=1000", "train_steps", 1000),
        ("--train_batch_size=128", "global_batch_size", 128),
        ("--batch_norm_decay=0.997", "batch_norm_decay", 0.997),
        ("--data_format=channels_last", "data_format", "channels_last"),
        ("--num_intra_threads=1", "num_intra_threads", 1),
    ):
        # Without --sync, parameter servers train asynchronously.
        assert getattr(parse(flags), name, None) == value, flags


@pytest.mark.parametrize("flag", ["num_workers", "run_experiment", "force_gpu_compatible"])
def test_flag_without_an_effect_says_so_in_one_line(
    parse: Any, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dashed = flag.replace("_", "-")
    for spelling in (
        f"--{flag}=True",
        f"--{flag}=False",
        f"--{dashed}=2",
        f"--{flag} 2",
        f"--{flag}",
        f"--no{flag}",
    ):
        arguments = parse(f"{spelling} --sync=True")
        assert not hasattr(arguments, flag), spelling
        assert arguments.mode == "sync", spelling
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"--{dashed} has no effect: "), spelling


def test_unknown_flag_and_wrong_boolean_are_refused(
    parse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ("--sync=maybe", "--no_such_flag=1"):
        with pytest.raises(SystemExit) as end:
            parse(flags)
        assert end.value.code == 2
        assert flags.partition("=")[0] in capsys.readouterr().err
