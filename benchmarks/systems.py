"""Systems that runs report, over one seed or several."""

from __future__ import annotations

import dataclasses

from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax.evaluation import Evaluation


@dataclasses.dataclass(frozen=True)
class System:
    """One of the systems that runs report.

    Attributes:
      runs: one for each seed.
      name: as the runs' tables call it.
    """

    runs: tuple[RecipeRun, ...]
    name: str

    def evaluate(self, split: str) -> Evaluation:
        """Runs what is not made yet; every query's mean over the seeds."""
        for run in self.runs:
            run.make()
        return mean_over_seeds([run.evaluation(split, self.name) for run in self.runs])

    def core_minutes(self) -> float:
        """Of the longest training, all cores together."""
        return max(run.core_minutes() for run in self.runs)

    def spread(self, split: str, measure: str) -> float:
        """Between the best seed and the worst."""
        values = [run.evaluation(split, self.name)[measure] for run in self.runs]
        return max(values) - min(values)

    def config(self) -> dict:
        """For a row's configuration, beside its runs."""
        return {"name": self.name, "runs": len(self.runs)}
