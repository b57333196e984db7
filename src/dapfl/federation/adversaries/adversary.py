"""Live attackers on the network of a normal run (`dapfl run --adversary NAME[,NAME]`).

An attacker sees every byte, remembers it, and may send any bytes to CS in anyone's name and to any client,
at any time. It does not keep honest messages from arriving: against that no cryptography helps, only the
round's deadline. Outsiders have no key of the federation. An insider is an enrolled client, with a client's
keys, that has turned malicious. CS itself can be the attacker, too.

What became of each attack is counted, and the run says so at its end.
"""

from collections.abc import Mapping, Sequence

from dapfl.errors import ConfigError
from dapfl.federation.adversaries.attacker import Attacker, Network, call_in
from dapfl.federation.adversaries.insiders import INSIDERS
from dapfl.federation.adversaries.malicious_server import MALICIOUS_SERVERS
from dapfl.federation.adversaries.outsiders import OUTSIDERS
from dapfl.federation.client import REMEMBERED_REFUSALS
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.keys.bundles import CommitteeKeys
from dapfl.federation.protection.base import ClientSuite
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.transport import Arrival, ClientId, Exchange, Transport

_WITHOUT_A_CLIENT = {**OUTSIDERS, **MALICIOUS_SERVERS}
ADVERSARIES = (*_WITHOUT_A_CLIENT, *INSIDERS)
_KEPT = 64  # messages that an attacker remembers from earlier exchanges


class Adversaries:
    """A transport with attackers on it; the honest messages pass unchanged."""

    def __init__(
        self,
        names: Sequence[str],
        transport: Transport,
        server: CentralServer,
        parameters: PublicParameters,
        insiders: Mapping[ClientId, ClientSuite],
        committee: CommitteeKeys | None = None,
    ) -> None:
        """`insiders` are the ids and suites of the enrolled attackers, in the order of their names."""
        check_names(names)
        self._transport = transport
        self._insiders = set(insiders)
        self._network = Network(transport, server, parameters)
        if committee is not None:
            self._network.members = tuple(each for each in committee.members if each not in insiders)
            self._network.threshold = committee.committee.threshold
        enrolled = iter(insiders.items())
        self._attackers: list[Attacker] = [
            _WITHOUT_A_CLIENT[name](self._network)
            if name in _WITHOUT_A_CLIENT
            else INSIDERS[name](self._network, *next(enrolled))
            for name in names
        ]

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Carries the honest messages; attackers strike while the replies are on their way."""
        honest = {client: data for client, data in messages.items() if client not in self._insiders}
        replies, failures = self._transport.exchange(honest, timeout)
        here = self._network
        here.timeout = timeout
        here.sent, here.replies = dict(messages), dict(replies)
        self._note_reports()
        for attacker in self._attackers:
            attacker.attack()
        answered = [(client, data) for client, data in here.sent.items() if client in replies]
        here.old_sent = [*here.old_sent, *answered][:_KEPT]
        here.old_replies = [*here.old_replies, *here.replies.items()][-_KEPT:]
        return Exchange(replies, failures)

    def _note_reports(self) -> None:
        """A client that answers a call reports what it has refused since its last report."""
        here = self._network
        for client in here.replies:
            if call_in(here.sent[client]) is not None:
                for attacker in here.refused_by.pop(client, [])[:REMEMBERED_REFUSALS]:
                    attacker.unrecorded -= 1

    def summary(self) -> tuple[str, ...]:
        """What became of each attacker, one line each."""
        return tuple(attacker.summary() for attacker in self._attackers)


def check_names(names: Sequence[str]) -> None:
    """ConfigError if one of the adversaries does not exist."""
    for name in names:
        if name not in ADVERSARIES:
            known = ", ".join(ADVERSARIES)
            raise ConfigError(f"There is no adversary '{name}': choose among {known}.")
