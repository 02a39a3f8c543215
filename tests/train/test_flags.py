"""Flags in the spelling of TensorFlow 1 programs."""

import argparse

import pytest

import phalanx
from phalanx.train.flags import ObsoleteFlag


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--own_flag")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--num-workers", action=ObsoleteFlag, help="TF_CONFIG has it")
    phalanx.RunConfig.add_flags(parser)
    return parser


def test_underscores_and_booleans_with_a_value_are_accepted() -> None:
    flags = "--model_dir=a_b --train_steps 9 --xla=True --chief_trains=False --sync=true --log=0"
    arguments = make_parser().parse_args([*flags.split(), "--own_flag", "c_d"])
    config = phalanx.RunConfig.from_flags(arguments)
    assert (config.model_dir, config.train_steps, config.mode) == ("a_b", 9, phalanx.Mode.SYNC)
    assert (config.xla, config.chief_trains) == (True, False)
    assert (arguments.own_flag, arguments.log) == ("c_d", False)


def test_booleans_are_read_with_a_space_and_with_no() -> None:
    flags = "--xla True --chief_trains false --log False --sync --own_flag True"
    arguments = make_parser().parse_args(flags.split())
    config = phalanx.RunConfig.from_flags(arguments)
    assert (config.xla, config.chief_trains, config.mode) == (True, False, phalanx.Mode.SYNC)
    assert (arguments.own_flag, arguments.log) == ("True", False)
    arguments = make_parser().parse_args(["--nochief_trains", "--nolog", "--nosync"])
    assert phalanx.RunConfig.from_flags(arguments).chief_trains is False
    assert (arguments.log, "mode" in arguments) == (False, False)


def test_sync_false_leaves_the_mode_to_the_cluster() -> None:
    assert "mode" not in make_parser().parse_args(["--sync=False"])


def test_obsolete_flag_says_why_it_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = make_parser().parse_args(["--num_workers=2", "--seed=3"])
    assert capsys.readouterr().err == "--num-workers has no effect: TF_CONFIG has it\n"
    assert (vars(arguments)["seed"], "num_workers" in arguments) == (3, False)


def test_unknown_flags_and_what_follows_two_dashes_stay_as_they_are() -> None:
    arguments = ["--their_flag=True", "--", "--model_dir=x"]
    parsed, rest = make_parser().parse_known_args(arguments)
    assert rest[0] == "--their_flag=True"
    assert "--model_dir=x" in rest
    assert "model_dir" not in parsed


def test_wrong_boolean_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--xla=perhaps"])
    assert "--xla" in capsys.readouterr().err
