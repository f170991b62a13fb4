"""GDR, all of its tables: `python -m benchmarks.gdr`.

Quality beside NCI and its own bi-encoder, ablations and sensitivities; growing corpora; memory, speed, updates and
scale. Each part can be run alone (`benchmarks.gdr_quality`, `benchmarks.gdr_efficiency`, …) and
records its rows in a file of its own. About eight hours on 2 cores, all of it resumable.
"""

from __future__ import annotations

import sys

from benchmarks import gdr_efficiency, gdr_quality, gdr_scaling, gdr_sensitivity, harness, large_index

PARTS = {
    "gdr_quality": gdr_quality,
    gdr_sensitivity.NAME: gdr_sensitivity,
    "gdr_efficiency": gdr_efficiency,
    gdr_scaling.NAME: gdr_scaling,
    "large_index": large_index,
}


if __name__ == "__main__":
    draws = {part.NAME: part.draw for part in (gdr_sensitivity, gdr_scaling)}
    sys.exit(harness.main_of_parts({name: part.rows for name, part in PARTS.items()}, draws=draws))
