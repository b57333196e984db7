"""Why messages were refused or work was lost: what the reasons in rounds.jsonl mean, and what to do.

The closing table, `dapfl status`, the report and the live page all take their words from here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """What a reason means, and what to do about it."""

    meaning: str
    remedy: str


_ATTACK = "look for an attacker, or a client that is broken"
_FOLDER = "give it the folder that was made for it, or look for an attacker"
_DEVICE_LOG = "read the log of the device"
_RETRY = "nothing, unless it happens again: the client is called in the next round"
_LIAR = "look for a client that lies"

EXPLANATIONS = {
    # Work that a client has not finished
    "over-budget": Explanation(
        "the plan cost more than the budget", "take a setting that caps epochs, or raise resources.budget"
    ),
    "diverged": Explanation(
        "training gave no finite model", "scale the inputs, or lower the learning rate (--eta)"
    ),
    "bad-data": Explanation("its data hold NaN or infinity", "clean them; the device's log names a row"),
    "no-data": Explanation("it does not find its data", "put them where the task looks for them"),
    "no-task": Explanation("its task does not load", _DEVICE_LOG),
    "no-usable-keys": Explanation("it has no usable keys", "put its own key bundle into its folder"),
    "bad-configuration": Explanation("its client.toml cannot be used", _DEVICE_LOG),
    "bad-state": Explanation("its saved state cannot be used", _DEVICE_LOG),
    "out-of-memory": Explanation("it ran out of memory", "free memory, or take a smaller model"),
    "disk-full": Explanation("it could not save its state", "free space on the device"),
    "client-error": Explanation("it failed", _DEVICE_LOG),
    "internal-error": Explanation("something unforeseen went wrong", _DEVICE_LOG),
    # Clients that could not be reached
    "late": Explanation("it did not answer in time", "raise round_timeout, or find out what slows it down"),
    "offline": Explanation("its node was not connected", "start its SuperNode"),
    "node-lost": Explanation("its node disappeared during the round", "see that its SuperNode keeps running"),
    "no-reply": Explanation("nothing came back", _DEVICE_LOG),
    "no-worker": Explanation("its worker does not answer", "start dapfl-worker on the device"),
    "worker-not-started": Explanation("its worker did not start", _DEVICE_LOG),
    "client-app-not-loaded": Explanation(
        "its ClientApp does not load", "install the same version of Dap-FL and Flower there"
    ),
    "client-app-failed": Explanation("its ClientApp failed", _DEVICE_LOG),
    "client-app-crashed": Explanation("its ClientApp crashed", _DEVICE_LOG),
    "app-refused": Explanation("its SuperNode refuses the app", _DEVICE_LOG),
    "message-lost": Explanation("Flower lost the message", _RETRY),
    "flower-error": Explanation("Flower failed on the device", _DEVICE_LOG),
    "unnamed-failure": Explanation("it failed, and does not say how", _DEVICE_LOG),
    "worker-died": Explanation("its process died", "look for a crash or a lack of memory"),
    "removed": Explanation("it was removed from the federation", "dapfl deploy add makes it a new folder"),
    # Rounds without a model
    "min-cohort": Explanation(
        "too few others took part", "bring back the clients that were lost, or lower --min-cohort"
    ),
    "below-min-cohort": Explanation("a sum over too few contributions", _LIAR),
    "no-quorum": Explanation(
        "too few members of the committee answered", "bring back those that are off (docs/threshold.md)"
    ),
    "no-agreement": Explanation("clients disagree about the model", "look for one that lies or lags"),
    "aggregate-refused": Explanation("clients refused the aggregate", _LIAR),
    "bad-aggregate": Explanation("the aggregate does not decode to a model", _LIAR),
    # Messages that are not what they claim to be
    "oversized": Explanation("it is larger than any message of this protocol", _ATTACK),
    "malformed": Explanation("it is not a message of this protocol", _ATTACK),
    "wrong-version": Explanation("it runs another version of Dap-FL", "install the same version everywhere"),
    "unknown-sender": Explanation("its sender does not belong to this federation", _FOLDER),
    "wrong-sender": Explanation("it was sent in someone else's name", _ATTACK),
    "wrong-recipient": Explanation("it was meant for someone else", _ATTACK),
    "wrong-federation": Explanation("it belongs to another federation", _FOLDER),
    "bad-envelope": Explanation("its envelope does not open", _FOLDER),
    "bad-signature": Explanation("the signature is not this sender's", _FOLDER),
    "bad-report": Explanation("its report is not within bounds; the contribution counts", _ATTACK),
    # Messages of another time
    "wrong-run": Explanation("it belongs to another run with the same keys", _ATTACK),
    "old-run": Explanation("it belongs to a run that is over", "do not go back to an earlier run"),
    "wrong-round": Explanation("it belongs to another round", _RETRY),
    "replayed": Explanation(
        "it has seen messages of this round before", "do not use one state folder for two runs"
    ),
    "duplicate": Explanation("it was answered already", _ATTACK),
    "not-asked": Explanation("nobody asked for it", _ATTACK),
    "unknown-roster": Explanation(
        "it has lost the roster, with its state", "nothing: it gets the roster again with its next call"
    ),
    "bad-roster": Explanation(
        "it cannot use the roster", "see that it has the folder that was made for it last"
    ),
    "old-roster": Explanation(
        "it works under another roster", "apply every server.update, in their order"
    ),
    "not-alone": Explanation("it asks one client to decrypt what only a committee may", _ATTACK),
    # Contents that are not possible
    "wrong-model": Explanation("it is about another model than it was asked about", _RETRY),
    "model-mismatch": Explanation("it starts from another model than most clients have", _LIAR),
    "unknown-model": Explanation("it does not have the model that it is asked about", _RETRY),
    "wrong-size": Explanation("it does not have the right size", _ATTACK),
    "invalid-ciphertext": Explanation("its numbers are not ciphertexts of this key", _ATTACK),
    "not-finite": Explanation("its numbers are not finite", _ATTACK),
    "absurd-size": Explanation(
        "it has more samples than were declared", "raise mean_samples (deploy init: --own-data MAX)"
    ),
    "unknown-count": Explanation("it refers to a proof of its samples that it never sent", _RETRY),
    "cohort-full": Explanation("there are more contributions than were declared", _ATTACK),
    # Decryption by a committee
    "unproved": Explanation("its sender does not prove that it knows what is in it", _ATTACK),
    "bad-proposal": Explanation("it asks to decrypt something else than a sum of contributions", _ATTACK),
    "not-a-member": Explanation("it is not on the committee", _ATTACK),
    "false-share": Explanation("its decryption share is false", _LIAR),
    "lost-state": Explanation("this member has lost track of what it has decrypted", _RETRY),
}  # fmt: skip

_OTHER = Explanation("its messages and ours do not fit together", "check for an attack, or broken keys")


def explain(reason: str) -> Explanation:
    """What a reason of rounds.jsonl means; some sentence for every reason.

    >>> explain("late").meaning
    'it did not answer in time'
    """
    return EXPLANATIONS.get(reason, _OTHER)
