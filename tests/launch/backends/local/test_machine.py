from __future__ import annotations

from pathlib import Path

from phalanx.launch.backends.local.machine import _count_processors, _find_gpus


def test_visible_gpus_are_found(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert _find_gpus({}, tmp_path) == ("0", "2", "10")
    assert _find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a, 3"}, tmp_path) == ("GPU-a", "3")
    assert _find_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()


def test_processors_are_limited_by_the_container(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    everything = _count_processors(limit)
    limit.write_text("50000 100000\n")
    assert _count_processors(limit) == 1
    limit.write_text("max 100000\n")
    assert _count_processors(limit) == everything
