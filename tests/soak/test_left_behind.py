"""Nothing that a run writes holds a secret, however it ends."""

import pytest

from tests.soak.left_behind import search


@pytest.mark.processes
@pytest.mark.parametrize("end", ["finished", "aborted"])
def test_no_file_of_a_run_holds_a_secret_but_its_key_bundles(end):
    findings = search("local", end, decryption="committee" if end == "aborted" else "shared")
    assert findings.found == []
    assert findings.plaintexts > 6 and findings.values >= 2 * (1 + 6 + 6) + 1
