"""The documentation site: complete, and its first page is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Those that Keras, TensorFlow or Python writes.
OTHERS = (
    "PerReplica", "failed call to", "Could not find", "oneDNN", "module 'tensor", "UNAVAIL",
    "partitioning or clustering", "Collective ops", "OOM when",
)  # fmt: skip


def first_program() -> str:
    [program] = re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    return str(program)


def test_program_of_the_first_page_runs(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(first_program())
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"'accuracy': ([\d.]+)", done.stdout)[0]) > 0.9


@pytest.mark.slow
def test_commands_of_the_first_page_train_on_clusters(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(first_program())
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    commands = [
        line
        for block in blocks
        for line in block.splitlines()
        if ("train.py" in line and "launch" not in line) or line.startswith("phalanx runs")
    ]
    assert len(commands) == 4
    path = f"{Path(sys.executable).parent}:{environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**environ, "PATH": path},
            capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "port.cc" not in done.stdout or not command.startswith("phalanx")
        assert "retracing" not in done.stdout
        assert "starting the program again" not in done.stdout
    assert re.search(r"circle +500 ", done.stdout)


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    missing = [page for page in pages if page not in nav and not page.startswith("decisions/")]
    assert missing == []


def test_error_messages_of_the_faq_are_those_of_phalanx() -> None:
    """The headings quote messages; `…` stands for what varies."""
    source = "".join(path.read_text() for path in Path(phalanx.__file__).parent.rglob("*.py"))
    source = re.sub(r'"\s*\n?\s*f?"', "", source)
    headings = re.findall(r"^### (.*)$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    quoted = [text for heading in headings for text in re.findall(r"`([^`]+)`", heading)]
    own = [text for text in quoted if " " in text and not text.startswith(OTHERS)]
    assert len(own) > 5
    for text in own:
        shown = re.escape(text.replace("(Address already in use)", "")).replace("…", r"\{.*?\}")
        assert re.search(shown, source), text


def test_code_of_the_pages_for_newcomers_runs(tmp_path: Path) -> None:
    [code] = re.findall(
        r"```python\n(.*?)```", (DOCS / "coming-from/horovod.md").read_text(), re.DOTALL
    )
    exec(code, {})


@pytest.mark.slow
def test_site_is_built_without_warnings_and_without_other_hosts(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    if not mkdocs.exists():
        pytest.skip("MkDocs is not installed: make site")
    site = tmp_path / "site"
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", site],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"""<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?://[^"]+)""", page.read_text()
        )
        assert loaded == [], page
    assert "Experiment" in (site / "api/index.html").read_text()
