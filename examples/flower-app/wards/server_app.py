"""The ServerApp: adds up models that it cannot read."""

from dapfl.engines.flower.apps import server_app
from dapfl.federation.records import RoundRecord
from wards.settings import CONFIG


def show(record: RoundRecord) -> None:
    """One line a round."""
    epochs = [client.alpha for client in record.clients]
    print(f"round {record.round}: accuracy {record.accuracy}, {record.participants} clients, epochs {epochs}")


app = server_app(CONFIG, on_round=show)
