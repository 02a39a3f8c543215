"""A hook of MkDocs: adds the pages that are made of other files, and mends links to such files.

The changelog, the policies and the examples are outside of docs/, where GitHub and readers of the
sources expect them. The API reference lists the public names of each package.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# Pages that are made of files outside of docs/, by their path in the repository.
_FILES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "README.md": "index.md",
}
# The packages of the API reference: the page, what people import, and the module that has it.
_PACKAGES = [
    ("api/index.md", "phalanx", "phalanx"),
    ("api/hooks.md", "phalanx.hooks", "phalanx.train.hooks"),
    ("api/data.md", "phalanx.data", "phalanx.data"),
    ("api/records.md", "phalanx.records", "phalanx.records"),
    ("api/cluster.md", "phalanx.cluster", "phalanx.cluster"),
    ("api/spark.md", "phalanx.spark", "phalanx.spark"),
]
# Modules whose public names are all documented.
_MODULES = [
    ("api/layers.md", "phalanx.layers", ["phalanx.train.layers"]),
    ("api/errors.md", "Errors", ["phalanx.errors"]),
    ("api/launchers.md", "Launchers", ["phalanx.launch.base", "phalanx.launch.job"]),
]
# What people look for first.
_FIRST = ("fit", "evaluate", "predict", "Experiment", "run", "RunConfig", "Context", "Result")
# What a search finds below the guides, and how far below them.
_SEARCH_BOOSTS = {
    "api/": 0.5,
    "decisions/": 0.2,
    "changelog.md": 0.2,
    "architecture.md": 0.2,
    "examples.md": 0.2,
}
_INLINE_CODE = re.compile(r"<code>([^<>\n]+)</code>")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for path, page in _FILES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    for page, title, module in _PACKAGES:
        names = sorted(_public_names(module), key=_rank)
        files.append(File.generated(config, page, content=_describe(title, module, names)))
    for page, title, modules in _MODULES:
        options = "options: {show_root_toc_entry: false}"
        blocks = "\n\n".join(f"::: {module}\n    {options}" for module in modules)
        files.append(File.generated(config, page, content=f"# {title}\n\n{blocks}\n"))
    files.append(File.generated(config, "examples.md", content=_show_examples()))
    files.append(File.generated(config, "decisions/index.md", content=_list_decisions()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to files of the repository lead to the pages that show them; rank the search."""
    for start, boost in _SEARCH_BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    sources = {page: path for path, page in _FILES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if page.file.src_uri == "index.md":
        source = "docs/index.md"

    def mend(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"\w+:|/", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = _find_page(path)
        if found is None:
            return text
        shown, own = found
        relative = posixpath.relpath(shown, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({relative}{own or anchor})"

    return _outside_code(markdown, lambda part: _LINK.sub(mend, part))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let no line end inside the name of an option, where browsers break after each dash."""

    def keep_words(match: re.Match[str]) -> str:
        words = (
            f'<span class="word">{word}</span>' if "-" in word and len(word) <= 30 else word
            for word in match[1].split(" ")
        )
        return f"<code>{' '.join(words)}</code>"

    return _INLINE_CODE.sub(keep_words, html)


def _outside_code(markdown: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _find_page(path: str) -> tuple[str, str] | None:
    """Return the page that shows a path of the repository, and the anchor on it."""
    if path in _FILES:
        return _FILES[path], ""
    if path in ("docs/decisions", "docs/decisions/index.md"):
        return "decisions/index.md", ""
    if path.startswith("docs/"):
        return path.removeprefix("docs/"), ""
    if path.startswith("examples"):
        folder = path.split("/")[1] if "/" in path else ""
        return "examples.md", f"#{folder.replace('_', '-')}" if folder else ""
    return None


def _public_names(module: str) -> Iterator[str]:
    """Yield the full name of each public name of a package, read from its source."""
    path = SOURCE / module.replace(".", "/") / "__init__.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("phalanx."):
            for alias in node.names:
                folder = SOURCE / node.module.replace(".", "/")
                has_page = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").exists()
                if not has_page and not _is_elsewhere(module, node.module):
                    yield f"{node.module}.{alias.name}"


def _is_elsewhere(package: str, module: str) -> bool:
    """Whether a name that a package imports is on another page, or not public."""
    hidden = ("phalanx.errors", "phalanx.lazy_names", "phalanx.train.runtime")
    is_cluster = package == "phalanx" and module.startswith("phalanx.cluster")
    return is_cluster or module.startswith(hidden)


def _rank(name: str) -> tuple[int, str]:
    last = name.rpartition(".")[2]
    return (_FIRST.index(last) if last in _FIRST else len(_FIRST), last)


def _describe(title: str, module: str, names: list[str]) -> str:
    """Return a page with the first paragraph of a package's docstring, and its public names."""
    source = (SOURCE / module.replace(".", "/") / "__init__.py").read_text()
    summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
    blocks = "\n\n".join(f"::: {name}" for name in dict.fromkeys(names))
    return f"# {title}\n\n{summary}\n\n{blocks}\n"


def _show_examples() -> str:
    parts = ["# Examples\n\nThe programs in `examples/`, as they are.\n"]
    for folder in sorted((ROOT / "examples").iterdir()):
        parts.append(f"## {folder.name} {{#{folder.name.replace('_', '-')}}}\n")
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".java"):
                language = "python" if path.suffix == ".py" else "java"
                name = path.relative_to(ROOT)
                parts.append(f"`{name}`\n\n```{language}\n{path.read_text().rstrip()}\n```\n")
            elif path.suffix == ".ipynb":
                parts.append(f"`{path.relative_to(ROOT)}`\n\n{_show_notebook(path)}")
    return "\n".join(parts)


def _show_notebook(path: Path) -> str:
    """Show the cells of a notebook, its title one level below that of the folder."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts.append(f"```python\n{text}\n```\n")
        else:
            parts.append(f"##{text}\n" if text.startswith("# ") else f"{text}\n")
    return "\n".join(parts)


def _list_decisions() -> str:
    lines = ["# Decisions\n\nWhat a newcomer might question, and why it is as it is.\n"]
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"
