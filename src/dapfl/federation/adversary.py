"""Live attackers on the wire of a normal run (`dapfl run --adversary NAME[,NAME]`).

An attacker sees every byte, may put any bytes before the server in anyone's name and before any
client, at any time, and keeps what it saw. It does not keep the honest messages from arriving:
against that there is no cryptography, only the round's deadline. Outsiders have no key of the
federation; insiders are an enrolled client, with the keys of one, gone bad.

What became of each attack is counted, so that the run can say so at its end.
"""

from collections.abc import Mapping, Sequence

from dapfl.errors import ConfigError
from dapfl.federation.attacker import Attacker, Field
from dapfl.federation.insiders import INSIDERS
from dapfl.federation.models import Shape
from dapfl.federation.outsiders import OUTSIDERS
from dapfl.federation.server import CentralServer
from dapfl.federation.suite import ClientSuite
from dapfl.federation.transport import ClientId, Exchange, Transport

_KEPT = 64  # messages that an attacker remembers from earlier exchanges


class Adversaries:
    """A transport with attackers on it; the honest messages pass unchanged."""

    def __init__(
        self,
        names: Sequence[str],
        transport: Transport,
        server: CentralServer,
        shape: Shape,
        insiders: Mapping[ClientId, ClientSuite],
    ) -> None:
        """`insiders` are the attackers' own ids and what they do with their keys, in the order of names."""
        check_names(names)
        self._transport = transport
        self._insiders = set(insiders)
        self._field = Field(transport, server, shape)
        enrolled = iter(insiders.items())
        self._attackers: list[Attacker] = [
            OUTSIDERS[name](self._field)
            if name in OUTSIDERS
            else INSIDERS[name](self._field, *next(enrolled))
            for name in names
        ]

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Carries the honest messages; attackers strike while the replies are on their way."""
        honest = {client: data for client, data in messages.items() if client not in self._insiders}
        replies, failures = self._transport.exchange(honest, timeout)
        here = self._field
        here.timeout = timeout
        here.sent, here.replies = dict(messages), dict(replies)
        for attacker in self._attackers:
            attacker.attack()
        here.old_sent = [*here.old_sent, *((c, data) for c, data in here.sent.items() if c in replies)][
            :_KEPT
        ]
        here.old_replies = [*here.old_replies, *here.replies.items()][-_KEPT:]
        return Exchange(replies, failures)

    def summary(self) -> tuple[str, ...]:
        """What became of each attacker, one line each."""
        return tuple(attacker.summary() for attacker in self._attackers)


def check_names(names: Sequence[str]) -> None:
    """ConfigError if one of the adversaries does not exist."""
    for name in names:
        if name not in OUTSIDERS and name not in INSIDERS:
            known = ", ".join([*OUTSIDERS, *INSIDERS])
            raise ConfigError(f"There is no adversary '{name}': choose among {known}.")
