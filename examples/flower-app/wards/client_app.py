"""The ClientApp: trains, tunes, encrypts, signs."""

from dapfl.engines.flower.apps import client_app
from wards.settings import CONFIG, POLICY

app = client_app(CONFIG, POLICY)
