"""What is recorded as the gap between two systems is the difference of what is recorded of each."""

import collections
import itertools

import pytest

from benchmarks import cited
from benchmarks.gdr_quality import ABOVE
from benchmarks.records import Record

# The small GDR was trained again then. Gaps that were recorded before are of its earlier training, which no other row
# shows: they have to agree on what it had reached.
TRAINED_AGAIN = "2026-11-22T06:00"


def _rows(*benchmarks: str) -> list[Record]:
    return [row for name in benchmarks for row in cited.recorded(cited.RESULTS / f"{name}.json").values()]


def _parts(gap: Record) -> list[tuple[Record, Record]]:
    """The rows of both systems, found by what they ran."""
    rows = _rows("gdr_quality", "dense_quality")
    wanted = ({"split": gap.config["split"], "system": gap.config[name]} for name in ("system", "other"))
    own, others = ([row for row in rows if row.config == one] for one in wanted)
    pairs = itertools.product(own, others)
    return [(one, other) for one, other in pairs if (*one.runs, *other.runs) == gap.runs]


@pytest.mark.parametrize("measure", ABOVE)
def test_gaps_are_differences(measure):
    earlier, checked = collections.defaultdict(list), 0
    for gap in _rows("gdr_quality"):
        for own, other in _parts(gap) if "other" in gap.config else ():
            reached = other.values[measure] + gap.values[ABOVE[measure]]
            if gap.date < TRAINED_AGAIN < own.date:
                earlier[own.config["split"]].append(reached)
            else:
                assert reached == pytest.approx(own.values[measure], abs=1e-9)
                checked += 1
    for values in earlier.values():
        assert values == pytest.approx([values[0]] * len(values), abs=1e-9)
    assert checked >= 20
