"""Every reason of the protocol is explained: in words, with a remedy, and in the documentation."""

import re
from pathlib import Path

import pytest

from dapfl.runs.monitoring.reasons import EXPLANATIONS, explain

ROOT = Path(__file__).parents[3]
RAISED = {
    reason
    for file in (ROOT / "src/dapfl/federation").rglob("*.py")
    for reason in re.findall(r'ProtocolError\(\s*"([a-z-]+)"', file.read_text("utf-8"))
}


def test_reasons_are_found() -> None:
    assert {"bad-signature", "malformed", "bad-proposal"} <= RAISED


@pytest.mark.parametrize("reason", sorted(RAISED))
def test_a_reason_of_the_protocol_is_explained(reason: str) -> None:
    assert explain(reason) is EXPLANATIONS.get(reason)
    assert reason == "bad-state" or f"`{reason}`" in (ROOT / "docs/protocol.md").read_text("utf-8")


def test_another_reason_gets_some_sentence() -> None:
    assert explain("never-heard-of").meaning and explain("never-heard-of").remedy
