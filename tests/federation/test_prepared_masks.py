"""Masks prepared while a device waits: the same models, and no mask serves twice."""

import numpy as np

from dapfl.federation.protection import paillier
from tests.federation.small import Small


def test_prepared_masks_change_no_model():
    plain, prepared = Small(codec="compact"), Small(codec="compact")
    plain.play(2)
    for _ in prepared.federation.rounds(2):
        for client in prepared.parts.values():
            while client.prepare():
                pass
    np.testing.assert_array_equal(plain.federation.weights, prepared.federation.weights)


def test_a_mask_serves_once(monkeypatch):
    monkeypatch.setattr(paillier, "_MASKS_AT_ONCE", 2)
    suite = Small().client_suite(1)
    key = suite._sk_cs_enc
    plaintexts = np.zeros((5, 8), np.uint8)
    assert suite.prepare(3) and suite.prepare(3) and not suite.prepare(3)
    masks = {row.tobytes() for block in suite._masks for row in block}
    assert len(masks) == 3
    rows = [suite.encrypt(plaintexts, b"") for _ in range(3)]
    ciphertexts = [np.frombuffer(data, np.uint8).reshape(5, key.public_key.ciphertext_bytes) for data in rows]
    assert all(not key.decrypt(each).any() for each in ciphertexts)
    every = [row.tobytes() for each in ciphertexts for row in each]
    assert len(set(every)) == 15
    assert masks == set(every[:3])  # of zeros, a mask is the ciphertext: used in the first batch only
    assert suite._masks == []


def test_masks_are_never_saved():
    small = Small(standalone=True)
    small.play(1)
    client = small.parts[1]
    before = client.saved_state()
    while client.prepare():
        pass
    assert client.saved_state() == before


def test_prepared_masks_hide_what_is_encrypted():
    small = Small()
    suite = small.client_suite(1)
    key = suite._sk_cs_enc
    plaintexts = np.arange(40, dtype=np.uint8).reshape(5, 8)
    while suite.prepare(5):
        pass
    rows = np.frombuffer(suite.encrypt(plaintexts, b""), np.uint8).reshape(5, -1)
    key.public_key.validate(rows)
    np.testing.assert_array_equal(key.decrypt(rows)[:, :8], plaintexts)


def test_a_committee_prepares_nothing():
    small = Small(decryption="committee")
    assert not small.parts[1].prepare()
