"""Which TensorFlow 1 names of a program work, found without running it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

from phalanx.compat.tf1.check.report import Finding, Status, check_source
from phalanx.compat.tf1.check.sources import Sources
from phalanx.compat.tf1.check.uses import find_uses

pytest.importorskip("tf_keras", reason="not installed: pip install 'phalanx[tf1]'")

PROGRAM = """\
    import tensorflow as tf
    import tensorflow.compat.v1 as v1
    import tensorlayer as tl
    from tensorflow.contrib import crf, slim
    from tensorflow.python.training import session_run_hook
    flags = tf.app.flags
    flags.DEFINE_string("data_dir", "", "")

    class Hook(session_run_hook.SessionRunHook):
        pass

    def build(x):
        net = crf.crf_log_likelihood(slim.conv2d(x, 8))
        net = tf.mul(net, tf.cast(2, tf.float32))
        return v1.train.AdamOptimizer(0.1).minimize(net), tf.GraphKeys.UPDATE_OPS

    spec = tl.distributed.TaskSpec()
"""


def find(source: str) -> dict[str, Finding]:
    findings = check_source(textwrap.dedent(source), Sources.find())
    return {finding.name: finding for finding in findings}


def test_every_name_is_judged_with_its_lines_and_its_replacement() -> None:
    found = find(PROGRAM)
    assert {name: str(each.status) for name, each in found.items()} == {
        "tf.contrib.crf.crf_log_likelihood": "missing",
        "tf.mul": "missing",
        "tensorlayer.distributed.TaskSpec": "works differently",
        "tf.GraphKeys": "works",
        "tf.cast": "works",
        "tf.contrib.slim.conv2d": "works",
        "tf.flags": "works",
        "tf.float32": "works",
        "tf.python.training.session_run_hook.SessionRunHook": "works",
        "tf.train.AdamOptimizer": "works",
    }
    assert list(found)[:2] == ["tf.contrib.crf.crf_log_likelihood", "tf.mul"]
    assert (found["tf.mul"].lines, found["tf.mul"].note) == ((14,), "use tf.multiply")
    assert found["tf.train.AdamOptimizer"].modern == "keras.optimizers.Adam"
    assert found["tf.cast"].modern == "the same"


def test_parts_of_contrib_are_judged_one_by_one() -> None:
    names = ["layers.flatten", "layers.batch_norm", "data.TextLineDataset", "data.unbatch"]
    names += ["training.byte_size_load_fn"]
    program = "\n".join(f"tf.contrib.{name}" for name in names)
    found = find(f"import tensorflow as tf\n{program}\n")
    judged = {name: (str(each.status), each.modern) for name, each in found.items()}
    assert judged == {
        "tf.contrib.layers.flatten": ("works", "keras.layers"),
        "tf.contrib.layers.batch_norm": ("works differently", "keras.layers"),
        "tf.contrib.data.TextLineDataset": ("works differently", "tf.data"),
        "tf.contrib.data.unbatch": ("works", "tf.data"),
        "tf.contrib.training.byte_size_load_fn": ("works", "none in TensorFlow 2"),
    }


def test_private_modules_have_the_names_of_their_package() -> None:
    found = find(
        """
        import numpy as np
        from tensorflow.contrib.framework.python.ops import arg_scope
        from tensorflow.contrib.slim import metrics, nets, utils
        from tensorflow.core.framework import node_def_pb2
        from tensorflow.core.protobuf import config_pb2, no_such_pb2
        from tensorflow.python.framework import device as pydev, graph_util
        from tensorflow.python.ops import rnn_cell
        isinstance(1, node_def_pb2.NodeDef)
        pydev.DeviceSpec.from_string(""), graph_util.convert_variables_to_constants()
        rnn_cell.BasicLSTMCell, rnn_cell.NoSuchCell
        metrics.streaming_accuracy, utils.convert_collection_to_dict, nets.resnet_v1
        np.zeros(3).tostring()
        """
    )
    assert {name: str(each.status) for name, each in found.items()} == {
        "numpy.ndarray.tostring": "missing",
        "tf.contrib.slim.nets.resnet_v1": "missing",
        "tf.core.protobuf.no_such_pb2": "missing",
        "tf.python.ops.rnn_cell.NoSuchCell": "missing",
        "tf.python.framework.device.DeviceSpec": "works",
        "tf.python.framework.graph_util.convert_variables_to_constants": "works",
        "tf.python.ops.rnn_cell.BasicLSTMCell": "works",
        "tf.core.framework.node_def_pb2.NodeDef": "works",
        "tf.core.protobuf.config_pb2": "works",
        "tf.contrib.framework.python.ops.arg_scope": "works",
        "tf.contrib.slim.metrics.streaming_accuracy": "works",
        "tf.contrib.slim.utils.convert_collection_to_dict": "works",
    }
    assert found["numpy.ndarray.tostring"].note.startswith("write tobytes() instead")


def test_program_for_python_2_is_reported() -> None:
    [finding] = find("import tensorflow as tf\nprint 'hello'\n").values()
    assert finding.status is Status.MISSING
    assert finding.name.startswith("line 2 is not Python 3")


def test_names_of_other_objects_are_not_taken_for_tensorflow() -> None:
    assert find_uses("import numpy as tf\ntf.mul(1)\nx = []\nx.append(tf.float32)") == []


def test_names_exist_if_the_installed_tensorflow_has_them() -> None:
    import tensorflow as tf

    v1, sources = tf.compat.v1, Sources.find()
    for module in (
        "",
        "train",
        "nn",
        "data",
        "losses",
        "metrics",
        "gfile",
        "summary",
        "estimator2",
    ):
        names = dir(getattr(v1, module, object())) if module else dir(v1)
        for name in [*names, "no_such_name"]:
            full = ".".join(filter(None, ["tensorflow", module, name]))
            home = getattr(v1, module, None) if module else v1
            if not name.startswith("_") and name not in ("estimator", "contrib", "v1"):
                assert sources.resolve(full).exists == hasattr(home, name), full


def test_check_exits_with_1_if_a_name_is_missing_and_reads_directories(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/bad.py").write_text("import tensorflow as tf\ntf.mul(1, 2)\ntf.add(1, 2)\n")
    (tmp_path / "good.py").write_text("import tensorflow as tf\ntf.add(1, 2)\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/installed.py").write_text("import tensorflow as tf\ntf.sub(1, 2)\n")
    ran = invoke("tf1", "check", tmp_path)
    assert ran.returncode == 1
    assert "missing           tf.mul (line 2): use tf.multiply" in ran.stdout
    assert "works             tf.add (line 2)  -> the same" in ran.stdout
    assert "2 files: 2 names work, 0 work differently, 1 are missing" in ran.stdout
    only = invoke("tf1", "check", "--only-missing", tmp_path / "deep/bad.py", tmp_path / "good.py")
    assert "tf.add" not in only.stdout
    assert invoke("tf1", "check", tmp_path / "good.py").returncode == 0
    (tmp_path / "image.png").write_bytes(b"PNG\0\0")
    image = invoke("tf1", "check", tmp_path / "image.png")
    assert image.returncode == 2
    assert "not the source of a Python program" in image.stderr
    for wrong in (tmp_path / "none.py", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        ran = invoke("tf1", "check", wrong)
        assert ran.returncode == 2
        assert str(wrong) in ran.stderr


def test_check_does_not_load_tensorflow() -> None:
    code = (
        "import sys\n"
        "from phalanx.compat.tf1.check.report import check_source\n"
        "from phalanx.compat.tf1.check.sources import Sources\n"
        "assert check_source('import tensorflow as tf\\ntf.Session()', Sources.find())\n"
        "assert 'tensorflow' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
