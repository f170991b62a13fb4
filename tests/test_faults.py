"""The list of faults fits the code: each can still be planted."""

import ast

import pytest

from tests import faults


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.file)
def test_what_is_changed_stands_there_once(fault):
    source = (faults.CHECKOUT / fault.file).read_text("utf-8")
    assert source.count(fault.before) == 1, f"{fault.what}: write what stands there now, and run tests.faults"
    ast.parse(source.replace(fault.before, fault.after))


def test_every_layer_has_one():
    layers = {folder.name for folder in (faults.CHECKOUT / "gr_jax").iterdir() if (folder / "__init__.py").is_file()}
    assert layers <= {fault.file.split("/")[1] for fault in faults.FAULTS}
    assert len(faults.FAULTS) == len({(fault.file, fault.before) for fault in faults.FAULTS}) == 40
