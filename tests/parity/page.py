"""The page "Differences from Keras", written from the table of cases."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

from tests.parity.all_cases import CASES
from tests.parity.table import RULES, TOLERANCE, Case, Mode

HEAD = f"""\
# Differences from Keras

`phalanx.fit` trains {{cases}} models, one for each feature of Keras below. `make test` trains every
fifth of them in one process, `make test-all` each in one process and in one other mode or more,
and `make parity` all of them in five modes. The weights, the variables of the optimizer and the
history must equal those of Keras' own `fit` to {TOLERANCE:.0e}, unless this page says otherwise.
`make docs` writes it from the table of cases in `tests/parity`.

## What each mode computes
"""


def describe() -> str:
    """Return the page."""
    rules = [f"- **{mode}**: {text}" for mode, text in RULES.items()]
    equal = [case for case in CASES if not (case.differences or case.refused or case.evaluation)]
    sections = [
        HEAD.format(cases=len(CASES)) + "\n" + "\n".join(map(_wrap, rules)),
        "## Differences on purpose\n\n" + "\n".join(_describe_differences()),
        "## Refused\n\nThese raise an error, which says what to do instead.\n\n"
        + "\n".join(_describe(lambda case: case.refused)),
        "## Larger tolerances\n\n" + "\n".join(_describe_tolerances()),
        "## Equal in every mode\n\n" + "\n".join(f"- {case.name}" for case in equal),
    ]
    return "\n\n".join(sections) + "\n"


def _describe_differences() -> list[str]:
    lines = _describe(lambda case: case.differences)
    evaluations = [case for case in CASES if case.evaluation]
    return lines + [
        _wrap(f"- **{case.name}**, in evaluations: {case.evaluation}") for case in evaluations
    ]


def _describe(read: Callable[[Case], Mapping[Mode, str]]) -> list[str]:
    """Return a line for each text, with the cases and the modes that have it."""
    found: dict[tuple[str, tuple[Mode, ...]], list[str]] = {}
    for case in CASES:
        texts = read(case)
        for text in dict.fromkeys(texts.values()):
            modes = tuple(mode for mode in Mode if texts.get(mode) == text)
            found.setdefault((text, modes), []).append(case.name)
    return [
        _wrap(f"- **{', '.join(names)}** ({_list_modes(modes)}): {text}")
        for (text, modes), names in found.items()
    ]


def _describe_tolerances() -> list[str]:
    lines = []
    for case in CASES:
        if case.tolerance > TOLERANCE:
            lines.append(f"- {case.name}: {case.tolerance:.0e}")
        elif case.replica_tolerance > TOLERANCE:
            where = "where replicas share a batch, because half precision rounds"
            lines.append(_wrap(f"- {case.name}: {case.replica_tolerance:.0e} {where}"))
    return lines


def _list_modes(modes: tuple[Mode, ...]) -> str:
    return "every mode" if len(modes) == len(Mode) else "; ".join(modes)


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False)
