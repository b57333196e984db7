"""What the directory of a deployment says about itself."""

from textwrap import dedent

from dapfl.crypto.keys.passphrase import VARIABLE
from dapfl.engines.flower.deployment.folders import client_name
from dapfl.engines.flower.deployment.scripts import LINK_PORT, Place
from dapfl.federation.keys.bundles import CommitteeKeys
from dapfl.federation.transport import ClientId

PASSPHRASES = "passphrases"


def readme(
    place: Place,
    clients: list[ClientId],
    *,
    passphrases: bool,
    committee: CommitteeKeys | None,
    wheel: str | None = None,
) -> str:
    """The text for whoever has made the folders."""
    text = _folders(place, clients)
    if wheel is not None:
        text += _WHEEL.format(wheel=wheel)
    if passphrases:
        text += _LOCKED
    return text + (_committee(committee) if committee is not None else "")


def _folders(place: Place, clients: list[ClientId]) -> str:
    names = f"{client_name(clients[0])} ... {client_name(clients[-1])}"
    return dedent(f"""\
        # A Dap-FL deployment

        | folder | goes to | contains |
        |---|---|---|
        | server | {place.host} | the server's keys, the SuperLink's certificate, every node's public key |
        | {names} | one device each | that client's keys, its node key, its settings |
        | authority.key, kdc.keys, ... | nowhere | sign certificates and rosters: keep them offline |

        Anyone who has all the folders can read and forge everything. Give each one to its owner over a
        channel that you trust, and delete the copies here.

        On every machine, put the folder into {place.home} and install Dap-FL with Flower there, as
        docs/deployment.md in Dap-FL's documentation says. Then

            server:  sudo -u dapfl ./start-superlink.sh   on 127.0.0.1:{LINK_PORT} only: it has no password
                     sudo -u dapfl ./start-gateway.sh     on port {place.port}: lets in SuperNodes only
            client:  sudo ./install.sh   a SuperNode, and a worker whose keys it cannot read
            server:  sudo -u dapfl ./run.sh --out /var/lib/dapfl/first-run

        When clients come and go (each makes update-001/, ... here):

            dapfl deploy add .                one more client: a folder for it, server.update for the server
            dapfl deploy replace . CLIENT     a lost device: a folder with new keys, server.update
            dapfl deploy remove . CLIENT      server.update only
            server:  sudo -u dapfl ./dapfl.sh deploy update . server.update
                     (the others get the roster with the next round)

        To try it without systemd: ./start-supernode.sh, as the one user that owns the folder.
        There is a systemd unit for each program that keeps running.
        """)


_WHEEL = """
## The wheel

Dap-FL itself is in every folder, as {wheel}. The last line of the installation in docs/deployment.md is then
`sudo /opt/dapfl/venv/bin/pip install client-001/{wheel}`.
"""


_LOCKED = f"""
## Passphrases

Every bundle of keys is under a passphrase of its own, in {PASSPHRASES}/. Tell each owner theirs over another
channel than the one that the folder takes, and delete the copies here. The owner puts it beside the folder:
client-001.passphrase beside client-001, for install.sh and the scripts to find. Another file is named by
`export {VARIABLE}=FILE` (in a systemd unit: `Environment={VARIABLE}=FILE`).
"""


def _committee(keys: CommitteeKeys) -> str:
    names = ", ".join(map(client_name, sorted(keys.members)))
    needed, off = keys.committee.threshold, keys.committee.members - keys.committee.threshold
    return dedent(f"""
        ## The committee

        {names} decrypt together: any {needed} of them. At most {off} may be off in a round; with fewer than
        {needed} the round is lost and the model stays. Put these folders on devices that are always on, and
        under different owners. A device that is replaced takes over its folder, with the folder `state` in
        it: there it has noted what it has decrypted. docs/threshold.md says what to do if a folder is lost
        or stolen.
        """)
