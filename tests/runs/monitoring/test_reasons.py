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
# What a device or a transport says instead of an answer.
FAILURES = {
    reason
    for file in (ROOT / "src/dapfl/engines").rglob("*.py")
    for reason in re.findall(
        r'(?:WorkerFailure\(|Error: |else |\d: |failures\[\w+\] = )"([a-z]+-[a-z-]+)"',
        file.read_text("utf-8"),
    )
}


def test_reasons_are_found() -> None:
    assert {"bad-signature", "malformed", "bad-proposal"} <= RAISED


@pytest.mark.parametrize("reason", sorted(RAISED))
def test_a_reason_of_the_protocol_is_explained(reason: str) -> None:
    assert explain(reason) is EXPLANATIONS.get(reason)
    assert reason == "bad-state" or f"`{reason}`" in (ROOT / "docs/protocol.md").read_text("utf-8")


@pytest.mark.parametrize("code", sorted({"late", "offline", "flower-error", *FAILURES}))
def test_a_failure_of_a_device_is_explained(code: str) -> None:
    assert {"no-worker", "no-usable-keys", "unnamed-failure"} <= FAILURES
    assert explain(code) is EXPLANATIONS.get(code)


def test_another_reason_gets_some_sentence() -> None:
    assert explain("never-heard-of").meaning and explain("never-heard-of").remedy
