"""Systems whose calibration is measured."""

import pytest

from benchmarks import gr_vs_dr_calibration

SYSTEMS = gr_vs_dr_calibration.systems()


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_has_settings(name):
    """A run with an encoder that its system does not take has none, and fails where its row is measured."""
    run, _ = SYSTEMS[name]
    assert run.data == gr_vs_dr_calibration.DATA and run.configs()[0]["settings"]
