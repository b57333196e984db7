"""What the codes mean by which a node says that it takes no part, for the server's log."""

from dapfl.federation.records import Status

EXPLANATIONS = {
    "client-app-not-loaded": "its ClientApp cannot be loaded; is dapfl installed there?",
    "client-app-failed": (
        "its ClientApp failed; is dapfl installed there, and dapfl.flower.mod among its mods? See its log"
    ),
    "client-app-crashed": "its ClientApp crashed; its log says why",
    "no-usable-keys": "it has no keys of this federation; its log says where it looked",
    "other-keys": "its keys are not of this federation",
    "bad-signature": "it has the keys of another federation",
    "other-model": "its train function returned another model than this federation's",
    "other-settings": "its mod and this strategy do not agree on the protection; its log says in what",
    "no-state-dir": "it is on the committee, and its node config names no state-dir for what it decrypts",
    "other-version": "it has another version of dapfl",
    "client-error": "it failed inside dapfl; its log has the traceback",
    "train-failed": "its train function failed; its log has the traceback",
    "evaluate-failed": "its evaluate function failed; its log has the traceback",
    "too-many-samples": "it has more samples than max_samples allows",
    "no-sample-count": "its train function returned no number of examples",
    "no-model": "its train function returned no model",
    "old-federation": "it has taken part in a later federation; are the clocks right?",
    "offline": "it is not connected",
    "no-answer": "it has not answered yet; its app may still be starting",
    "late": "it did not answer in time",
    "client-twice": (
        "it says to be a client that is connected already; give each node its own keys and partition-id"
    ),
    "unproved-client": (
        "it says that it is a client and does not prove it: its keys are not of this federation, "
        "or its dapfl is older"
    ),
    "unknown-client": "it is none of this federation's clients",
    "min-cohort": "too few others contributed for the sum to be published",
}


def explained(code: str) -> str:
    """What a code means, or the code itself."""
    return f"{EXPLANATIONS[code]} ({code})" if code in EXPLANATIONS else code


def explained_status(status: Status) -> str:
    """What became of a client, with the reason in words."""
    if status == Status.DIVERGED:
        return "diverged: its model has numbers that are not finite or too large; its log says which"
    return f"{status.kind}: {explained(status.reason)}" if status.reason else str(status)
