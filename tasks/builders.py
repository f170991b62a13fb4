"""The papers' data sets for TensorFlow Datasets: builders over the same readers as `gr-jax data`.

    builder = NQ320k(data_dir="tfds", config="nci")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir="~/nq"))
    builder.as_dataset(split="corpus")

The raw files are put into a folder by hand: some need an agreement, and tens of gigabytes are not fetched twice. The
split "corpus" has the documents; every other has its judged questions, each with the documents that answer it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from gr_jax.corpus import Qrels, Queries
from gr_jax.datasets import folder, kind

VERSION = "1.0.0"
CORPUS = "corpus"


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """A data set of `gr_jax.datasets`; its variants are its configs."""

    VERSION = tfds.core.Version(VERSION)
    NAME = ""

    def _info(self) -> tfds.core.DatasetInfo:
        """Documents and questions have one form: what one has not is empty."""
        text = tfds.features.Text()
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "id": text, "title": text, "text": text, "documents": tfds.features.Sequence(text),
                    "grades": tfds.features.Sequence(tfds.features.Scalar(np.int64)),
                }
            ),
            description=kind(self.NAME).about,
        )  # fmt: skip

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        """Builds the folder, where it is not there, and reads it."""
        built = pathlib.Path(self.data_dir).with_name(f"{self.builder_config.name}-built")
        about = kind(self.NAME).build(
            pathlib.Path(dl_manager.manual_dir), built, self.builder_config.name, 1, False
        )  # goes on where it was interrupted
        return {CORPUS: _documents(built), **{split: _questions(built, split) for split in about.questions}}

    def _generate_examples(self, *arguments: Any) -> Iterator:  # abstract there; `_split_generators` has the examples
        raise AssertionError(arguments)


def _documents(built: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    nothing: dict[str, Any] = {"documents": [], "grades": []}
    for place, document in enumerate(folder.documents_of(built)):
        yield place, {"id": document.doc_id, "title": document.title, "text": document.text, **nothing}


def _questions(built: pathlib.Path, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    queries = Queries.load(built / folder.QUERIES)
    for place, (query, grades) in enumerate(Qrels.load(built / "qrels" / f"{split}.tsv").items()):
        yield place, {
            "id": query, "title": "", "text": queries.text(query), "documents": list(grades),
            "grades": list(grades.values()),
        }  # fmt: skip


def _builder(name: str, dataset: str) -> type[_Builder]:
    """The builder of a data set, as a class of this module."""
    configs = [
        tfds.core.BuilderConfig(name=variant, description=said.whose)
        for variant, said in kind(dataset).variants.items()
    ]
    about = f"{kind(dataset).about} Raw files in manual_dir: {kind(dataset).raw}."
    return type(
        name, (_Builder,),
        {"__doc__": about, "__module__": __name__, "NAME": dataset, "BUILDER_CONFIGS": configs,
         "MANUAL_DOWNLOAD_INSTRUCTIONS": kind(dataset).raw},
        skip_registration=False,
    )  # fmt: skip


NQ320k = _builder("NQ320k", "nq320k")
Kilt = _builder("Kilt", "kilt")
MsMarco = _builder("MsMarco", "ms_marco")
Dpr = _builder("Dpr", "dpr")
