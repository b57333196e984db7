"""Files that were damaged, or that somebody has made up, are refused by name."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.cli import main
from tests.soak.decoders import DECODERS, inputs, mutated, outcome


@pytest.mark.parametrize("kind", DECODERS)
def test_everything_in_the_corpus_is_refused_by_name_or_read(kind: str, tmp_path: Path) -> None:
    for path in inputs(kind):
        said = outcome(kind, path.read_bytes(), tmp_path)
        assert said == "read" or not path.name.startswith("seed"), said


@pytest.mark.parametrize("kind", DECODERS)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_an_altered_file_is_refused_by_name_or_read(kind: str, seed: int, tmp_path: Path) -> None:
    rng, known = np.random.default_rng(seed), inputs(kind)
    outcome(kind, mutated(kind, known[int(rng.integers(len(known)))].read_bytes(), rng), tmp_path)


def test_what_a_file_holds_does_not_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('"\\u001b]0;owned\\u0007" = 1\n')
    assert main(["run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\\x1b]0;owned" in said.replace("\n", "")
