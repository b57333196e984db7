"""What the documentation shows works: Python blocks run, commands parse, cheap ones are executed.

A Python block that cannot run here begins with `# not run:` and says why.
"""

import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from dapfl import __version__, cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
)
NAMED = ("src", "tests", "examples", "scripts")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    """The Python of a page, each block moved down to its line there: a failure names the right line."""
    text = page.read_text("utf-8")
    return [
        "\n" * (text[: found.start(2)].count("\n")) + found[2]
        for found in FENCED.finditer(text)
        if found[1] == "python"
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "page"}
    for block in python_blocks(page):
        if not block.lstrip().startswith("# not run: "):
            exec(compile(block, str(page), "exec"), space)


def is_whole(span: str) -> bool:
    """Whether one can type it: `dapfl keys generate` and `dapfl run --resume` only name something."""
    return "..." not in span and not all(re.fullmatch(r"[a-z-]+", word) for word in span.split())


def commands_in(text: str) -> list[str]:
    """Every command line of dapfl: in blocks, one a line, and between backticks if it is a whole one."""
    lines = [line for language, block in FENCED.findall(text) if not language for line in block.splitlines()]
    lines += re.findall(r"^    (dapfl .*)$", text, flags=re.MULTILINE)
    lines += filter(is_whole, re.findall(r"`(dapfl [^`\n]+)`", text))
    found = []
    for line in lines:
        # What follows a command is a comment: behind a hash, or some way to the right.
        command = re.split(r"\s#|&&|\||\s{3,}", line.strip())[0].strip()
        command = re.sub(r"^\./scripts/run\b", "dapfl run", command)
        if re.match(r"dapfl [a-z]", command):
            found.append(command)
    return list(dict.fromkeys(found))


PAGE_COMMANDS = [
    (name_of(page), command) for page in PAGES for command in commands_in(page.read_text("utf-8"))
]
HELP_COMMANDS = [
    (f"dapfl {name} --help", line.strip())
    for name in cli.COMMANDS
    for line in commands_in("```\n" + import_module(f"dapfl.commands.{name}").EXAMPLES + "```\n")
]


@pytest.mark.parametrize(("where", "command"), PAGE_COMMANDS + HELP_COMMANDS)
def test_commands_are_ones_that_dapfl_takes(where: str, command: str) -> None:
    try:
        cli.parser().parse_args(shlex.split(command)[1:])
    except SystemExit:
        pytest.fail(f"{where}: `{command}` does not parse")


def test_commands_are_found() -> None:
    assert len(PAGE_COMMANDS) > 30 and len(HELP_COMMANDS) > 20
    assert commands_in(
        "```\ndapfl run --rounds 5   five\n./scripts/run --x  # y\n```\n`dapfl keys show FILE`"
    ) == [
        "dapfl run --rounds 5",
        "dapfl run --x",
        "dapfl keys show FILE",
    ]


CHEAP = [
    command
    for _, command in PAGE_COMMANDS
    if "--encryption none" in command and "logistic-mnist" in command and "--out" in command
]


@pytest.mark.processes
@pytest.mark.parametrize("command", dict.fromkeys(CHEAP))
def test_open_runs_of_the_docs_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*shlex.split(command)[1:], "--rounds", "2"]) == 0  # as it stands, but for its length
    assert list(tmp_path.rglob("model.npz"))


def test_links_lead_somewhere() -> None:
    dead = [
        f"{name_of(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not dead


def test_files_that_are_named_exist() -> None:
    """A path between backticks, from the root or from some package on; `::` names a test in it."""
    files = [name_of(file) for folder in NAMED for file in (ROOT / folder).rglob("*.py")] + ["setup.py"]
    wrong = []
    for page in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "results/README.md"]:
        for path, test in re.findall(r"`([\w/-]+\.py)(?:::(\w+))?`", page.read_text("utf-8")):
            found = [file for file in files if f"/{file}".endswith(f"/{path}")]
            if test:
                found = [file for file in found if f"def {test}(" in (ROOT / file).read_text("utf-8")]
            if not found:
                wrong.append(f"{name_of(page)}: {path} {test}".rstrip())
    assert not wrong


def defined_tests() -> set[str]:
    """The names of all test functions."""
    texts = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^ *def (test_\w+)\(", text, flags=re.MULTILINE)}


def test_tests_that_are_named_exist() -> None:
    """`test_...` between backticks, without a file, is a test function of this project."""
    known = defined_tests()
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        named = set(re.findall(r"`(?:[\w/-]+\.py::)?(test_\w+)`", page.read_text("utf-8")))
        assert named <= known, f"{name_of(page)}: {sorted(named - known)}"


def test_every_line_about_an_attacker_names_a_test_that_shows_it() -> None:
    text = (ROOT / "docs/security.md").read_text("utf-8")
    section = text.partition("\n## What each attacker can do\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*\|$", section, flags=re.MULTILINE)
    attacks = [row for row in rows if not row.endswith("| test |")]
    assert len(attacks) > 25
    assert not [row for row in attacks if "`test_" not in row and "/test_" not in row]


def test_citations_name_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"version = {{{__version__}}}" in (ROOT / "README.md").read_text("utf-8")
