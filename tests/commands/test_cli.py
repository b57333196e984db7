"""The command line: help everywhere, one sentence for a mistake, exit codes by who is to blame."""

import subprocess
import sys

import pytest

from dapfl import cli
from dapfl.errors import ConfigError, TransportError


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"dapfl {command}" in shown.partition("examples:")[2]


def test_help_needs_no_heavy_library() -> None:
    heavy = {"torch", "flwr", "matplotlib"}
    code = f"import sys, dapfl.cli; dapfl.cli.parser(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        ([], "dapfl"),
        (["fly"], "dapfl"),
        (["run", "--speed", "9"], "dapfl run"),
        (["compare"], "dapfl compare"),
    ],
)
def test_a_mistyped_command_is_told_in_one_sentence_with_the_help_that_lists_what_there_is(
    arguments: list[str], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert len(told.strip().splitlines()) == 1
    assert f"See '{program} --help'" in told


def test_a_wrong_value_is_told_before_pytorch_is_loaded() -> None:
    code = "import sys, dapfl.cli; print(dapfl.cli.main(['run', '--rounds', '0']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False"
    assert "rounds must be at least 1" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("That cannot be."), 2, "dapfl data: That cannot be."),
        (TransportError("The line is dead."), 1, "dapfl data: The line is dead."),
        (ZeroDivisionError("division by zero"), 1, "unexpected ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "Stopped."),
    ],
)
def test_exit_codes_tell_a_mistake_from_a_failure(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    words: str,
) -> None:
    from dapfl.commands import data

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(data, "execute", fail)
    assert cli.main(["data", "show"]) == code
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from dapfl.commands import data

    def fail(_: object) -> int:
        raise ConfigError("That cannot be.")

    monkeypatch.setattr(data, "execute", fail)
    with pytest.raises(ConfigError):
        cli.main(["data", "--debug", "show"])


def test_options_are_not_guessed_from_their_beginning(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "--task", "logistic-mnist", "--out", "x", "--seed", "10"])
    assert stop.value.code == 2
    assert "--seed" in capsys.readouterr().err
