"""What a participant does with its keys, or without, as its configuration says."""

from functools import partial

from dapfl.config import CryptoConfig, RunConfig
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.packing import VectorCodec
from dapfl.errors import ConfigError, KeyFileError
from dapfl.federation.global_model.committee_decryption import CommitteeDecryption
from dapfl.federation.global_model.recovery import RecoveryBuilder
from dapfl.federation.global_model.shared_decryption import SharedDecryption
from dapfl.federation.keys import kdc
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.protection.base import ClientSuite, ServerSuite
from dapfl.federation.protection.committee import CommitteeClientSuite, CommitteeServerSuite
from dapfl.federation.protection.open import OpenClientSuite, OpenServerSuite
from dapfl.federation.protection.paillier import PaillierClientSuite, PaillierServerSuite


def has_committee(crypto: CryptoConfig) -> bool:
    """Whether a committee decrypts."""
    return crypto.encryption != "none" and crypto.decryption == "committee"


def client_suite(crypto: CryptoConfig, bundle: ClientBundle | None, codec: VectorCodec) -> ClientSuite:
    """What a client does with its keys, or without."""
    if bundle is None:
        return OpenClientSuite(codec)
    suite = CommitteeClientSuite if has_committee(crypto) else PaillierClientSuite
    return suite(bundle, envelope_named(crypto.envelope), codec)


def server_suite(crypto: CryptoConfig, bundle: ServerBundle | None, codec: VectorCodec) -> ServerSuite:
    """What CS does with its keys, or without."""
    if bundle is None:
        return OpenServerSuite(codec)
    suite = CommitteeServerSuite if has_committee(crypto) else PaillierServerSuite
    return suite(bundle, envelope_named(crypto.envelope), codec)


def recovery_of(crypto: CryptoConfig, bundle: ServerBundle | None) -> RecoveryBuilder:
    """Who decrypts aggregates."""
    if not has_committee(crypto) or bundle is None:
        return SharedDecryption
    if bundle.committee is None:
        raise KeyFileError('These keys are for decryption by every client: set decryption = "shared".')
    return partial(CommitteeDecryption, keys=bundle.committee)


def smallest_cohort(config: RunConfig) -> int:
    """The fewest clients whose sum is decrypted, in a federation with this configuration."""
    if not has_committee(config.crypto):
        return config.min_cohort
    members, threshold = kdc.committee_of(config.clients, config.crypto)
    return protected_cohort(members, threshold, config.min_cohort, config.per_round or config.clients)


def least_cohort(bundle: ServerBundle | ClientBundle | None, least: int, clients: int) -> int:
    """The same, in a federation with these keys."""
    if bundle is None or bundle.committee is None:
        return least
    committee = bundle.committee.committee
    return protected_cohort(committee.members, committee.threshold, least, clients)


def protected_cohort(members: int, threshold: int, least: int, called: int) -> int:
    """The fewest clients whose sum a committee decrypts: two of them are honest, whoever colludes with CS.

    Even t - 1 members, who cannot decrypt, could subtract their own contributions from a sum, so it takes
    t + 1. Where that would be all clients of a round, it takes two more than may break the protocol together.

    >>> [protected_cohort(5, 4, 3, called) for called in (20, 6, 5)], protected_cohort(4, 3, 3, 4)
    ([5, 5, 4], 3)
    """
    colluders = 2 * threshold - members - 1
    if colluders < 0:
        raise ConfigError(
            f"If {threshold} of {members} members decrypt, a server could have two different sums decrypted "
            f"in a round: committee_threshold must be more than half of {members}."
        )
    needed = max(least, colluders + 2, min(threshold + 1, called - 1))
    if needed > called:
        raise ConfigError(
            f"A committee of {members}, any {threshold}, protects cohorts of {needed} or more, and a round "
            f"calls {called} clients: add clients, lower crypto.committee_threshold, or choose "
            "--decryption shared."
        )
    return needed
