"""RunConfig: its checks, its flags, and which setting takes precedence."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.small_experiment import Line

import phalanx
from phalanx.errors import ConfigurationError


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accumulate": 0}, "accumulate is 0: it must be at least 1"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0: it must be more than 0"),
        ({"mixed_precision": "half"}, "mixed_precision is 'half': it must be 'float16'"),
        ({"mode": "fast"}, "mode is 'fast': it must be 'sync' or 'async'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        phalanx.RunConfig(**settings)


def test_a_seed_of_zero_and_unset_limits_are_valid() -> None:
    config = phalanx.RunConfig(seed=0, save_seconds=None, log_steps=None, mode="async")  # type: ignore[arg-type]
    assert config.mode is phalanx.Mode.ASYNC


def test_every_setting_has_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        phalanx.RunConfig.parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(phalanx.RunConfig):
        if field.name != "mode":
            assert f"--{field.name.replace('_', '-')}" in shown
            assert field.metadata["help"] in shown
    assert "--sync Train synchronously." in shown
    assert "--async Train asynchronously." in shown


def test_flags_are_parsed_by_the_type_of_their_setting() -> None:
    flags = "--async --save-seconds 1.5 --no-xla --devices GPU:0,GPU:1 --variables cpu --seed 3"
    config = phalanx.RunConfig.parse(flags.split())
    assert (config.mode, config.save_seconds, config.xla) == (phalanx.Mode.ASYNC, 1.5, False)
    assert (config.devices, config.variables, config.seed) == (("GPU:0", "GPU:1"), "cpu", 3)
    assert phalanx.RunConfig.parse(["--devices", "2"]).devices == 2


def test_defaults_of_the_programs_parser_count() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(global_batch_size=128)
    config = phalanx.RunConfig.from_flags(parser.parse_args(["--epochs", "2"]), log_steps=5)
    assert (config.global_batch_size, config.epochs, config.log_steps) == (128, 2, 5)


def test_description_has_the_settings_that_differ_from_their_defaults() -> None:
    assert phalanx.RunConfig(keep_max=7, xla=True).describe() == "keep_max=7, xla=True"
    assert phalanx.RunConfig().describe() == "all settings have their defaults"


def test_code_overrides_flags_and_flags_override_tf_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*argv: str, **code: Any) -> str:
        config = phalanx.RunConfig.parse([*argv, "--train-steps", "1"], **code)
        return phalanx.run(Line(), config).model_dir

    tf_config = {"model_dir": str(tmp_path / "tf_config"), "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    assert run() == str(tmp_path / "tf_config")
    assert run("--model-dir", str(tmp_path / "flag")) == str(tmp_path / "flag")
    code = str(tmp_path / "code")
    assert run("--model-dir", str(tmp_path / "flag"), model_dir=code) == code


def test_abbreviated_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for parse in (phalanx.RunConfig.parse, _parse_with_own_parser):
        with pytest.raises(SystemExit):
            parse(["--steps", "6000"])
        assert "unrecognized arguments: --steps 6000" in capsys.readouterr().err


def _parse_with_own_parser(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.parse_args(argv)
