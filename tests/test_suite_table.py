"""`pytest --suite-table`, which `make test-all` uses, on a few tests with known results."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "pytest.ini": "[pytest]\nmarkers = slow\n",
    "conftest.py": "from tests.suite_table import pytest_addoption, pytest_terminal_summary\n",
    "sound/test_a.py": "def test_1(): pass\ndef test_2(): pass\n",
    "broken/test_b.py": "def test_1(): assert False\ndef test_2(): pass\n",
    "unreadable/test_c.py": "import no_such_module\n",
    "teardown/test_d.py": (
        "import pytest\n"
        "@pytest.fixture\n"
        "def server():\n    yield\n    raise OSError('left behind')\n"
        "def test_1(server): pass\n"
    ),
    "partly/test_e.py": (
        "import pytest\n"
        "def test_1(): pass\n"
        "@pytest.mark.skipif(True, reason='no engine')\n"
        "@pytest.mark.parametrize('x', [1, 2])\n"
        "def test_2(x): pass\n"
        "@pytest.mark.slow\n"
        "def test_3(): pytest.skip('no browser')\n"
    ),
    "absent/test_f.py": "import pytest\npytest.importorskip('no_such', reason='no Spark')\n",
}


def test_table_names_the_suites_of_all_runs_and_why_tests_were_skipped(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(*arguments: str) -> list[str]:
        table = ("--suite-table", "build/suites.json", "--continue-on-collection-errors")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--import-mode=importlib", "-ra", *table, *arguments],
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        *rows, _ = re.split(r"=+ suites =+\n", done.stdout)[1].splitlines()
        return [re.sub(r"  +", " | ", re.sub(r" +\d+$", "", row)) for row in rows]

    assert run("-m", "not slow", "-n", "2", "--dist", "loadfile") == [
        "suite | result | passed | failed | skipped | seconds",
        "absent | skipped | 0 | 0 | 1",
        " | 1 skipped: no Spark",
        "broken | FAILED | 1 | 1 | 0",
        "partly | passed in part | 1 | 0 | 2",
        " | 2 skipped: no engine",
        "sound | passed | 2 | 0 | 0",
        "teardown | FAILED | 1 | 1 | 0",
        "unreadable | FAILED | 0 | 1 | 0",
        "all | FAILED | 5 | 3 | 3",
    ]
    assert run("-m", "slow", "partly", "unreadable")[4:] == [
        "partly | passed in part | 1 | 0 | 3",
        " | 2 skipped: no engine",
        " | 1 skipped: no browser",
        "sound | passed | 2 | 0 | 0",
        "teardown | FAILED | 1 | 1 | 0",
        "unreadable | FAILED | 0 | 2 | 0",
        "all | FAILED | 5 | 4 | 4",
    ]
