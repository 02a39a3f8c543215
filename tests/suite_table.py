"""The table at the end of `make test-all`: which suites ran, and why tests were skipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

FAILED = ("failed", "error")


@dataclass
class Suite:
    """The results of the tests in one directory."""

    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def result(self) -> str:
        if self.failed:
            return "FAILED"
        if not self.passed:
            return "skipped"
        return "passed in part" if self.skipped else "passed"

    def add(self, other: Suite) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.seconds += other.seconds
        self.skipped += other.skipped


Report = pytest.TestReport | pytest.CollectReport


def count_by_suite(stats: dict[str, list[Report]]) -> dict[str, Suite]:
    """Count what pytest's terminal has collected, by the directory of the test."""
    suites: dict[str, Suite] = {}
    for kind, reports in stats.items():
        for report in reports:
            # Warnings and deselected tests are in the same dictionary.
            if not isinstance(report, Report):
                continue
            path = PurePosixPath(report.nodeid.partition("::")[0])
            # A result of a whole directory, such as one that cannot be imported, has its path.
            folder = path.parent if path.suffix == ".py" else path
            suite = suites.setdefault(str(folder), Suite())
            suite.seconds += getattr(report, "duration", 0.0)
            if kind in FAILED:
                suite.failed += 1
            elif kind == "skipped":
                suite.skipped[read_reason(report)] += 1
            elif kind in ("passed", "xfailed"):
                suite.passed += 1
    return suites


def merge(path: Path, suites: dict[str, Suite]) -> dict[str, Suite]:
    """Add the results to those of earlier runs in this file, and return all of them."""
    merged: dict[str, Suite] = {}
    if path.exists():
        for name, values in json.loads(path.read_text()).items():
            merged[name] = Suite(**{**values, "skipped": Counter(values["skipped"])})
    for name, suite in suites.items():
        merged.setdefault(name, Suite()).add(suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: vars(suite) for name, suite in merged.items()}))
    return merged


def read_reason(report: Report) -> str:
    """Return why the test was skipped, without the word that pytest puts before it."""
    place = report.longrepr
    reason = place[2] if isinstance(place, tuple) else str(place)
    return " ".join(reason.removeprefix("Skipped: ").split())


def format_table(suites: dict[str, Suite]) -> list[str]:
    """Return one line for each suite and, below it, one for each reason of skipped tests."""
    width = max((len(name) for name in suites), default=0)
    lines = [f"{'suite':{width}}  result          passed  failed  skipped  seconds"]
    total = Suite()
    for name, suite in sorted(suites.items()):
        lines.append(_format_line(f"{name:{width}}", suite))
        lines += [f"    {count} skipped: {reason}" for reason, count in suite.skipped.items()]
        total.add(suite)
    return [*lines, _format_line(f"{'all':{width}}", total)]


def _format_line(name: str, suite: Suite) -> str:
    skipped = suite.skipped.total()
    counts = f"{suite.passed:6}  {suite.failed:6}  {skipped:7}  {suite.seconds:7.0f}"
    return f"{name}  {suite.result:14}  {counts}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite-table",
        metavar="FILE",
        help="end with a table of the suites that ran, now and in earlier runs with this file",
    )


# The outermost wrapper prints after everything else.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    yield
    path = config.getoption("--suite-table")
    # The workers of pytest-xdist call this, too.
    if path is not None and not hasattr(config, "workerinput"):
        suites = merge(Path(path), count_by_suite(terminalreporter.stats))
        terminalreporter.section("suites")
        for line in format_table(suites):
            terminalreporter.line(line)
