"""What the site has and a code host does not: pages of all that can be imported, and the tree of pages.

Pages in the repository are plain Markdown. They link to packages by their folders, which a code host shows; here these
links lead to `api/NAME.rst`, written when the site is built. The tree follows the links of pages that are called index.
"""

from __future__ import annotations

import pathlib
import re

from sphinx.application import Sphinx

API = pathlib.Path(__file__).resolve().parents[1] / "api"
# Package → its modules whose names it does not export itself.
PACKAGES: dict[str, tuple[str, ...]] = {
    "systems": (),
    "retrievers": ("ngrams", "ngram_scorer"),
    "training": (),
    "evaluation": (
        "calibration",
        "temperature",
        "calibration_pages",
        "calibration_plots",
        "plots",
        "dot_plots",
        "kilt",
        "answer_match",
        "theory",
    ),
    "models": (),
    "losses": (),
    "decoding": (),
    "dense": (),
    "constraints": (),
    "docids": (),
    "clustering": (),
    "datasets": (
        "kinds",
        "folder",
        "raw",
        "convert",
        "nq_build",
        "kilt",
        "ms_marco",
        "dpr",
        "ir_catalogue",
        "samples",
    ),
    "corpus": ("nq", "nq320k", "kilt", "kilt_pages", "kilt_predictions", "dpr_files", "ms_marco"),
    "text": (),
    "interop": ("huggingface", "sentence_transformers", "t5x"),
    "storage": (),
}
# Its other names are described by the packages that define them.
_TOP = """gr_jax
======

.. automodule:: gr_jax

.. autofunction:: gr_jax.load

.. autoexception:: gr_jax.InputError
"""
_TO_PACKAGE = re.compile(r"\]\((?:\.\./)+gr_jax(?:/(\w+))?/?\)")


def write_api() -> None:
    """The page of each package; files that stay the same are left alone."""
    pages = {"top": _TOP}
    pages |= {name: _page(f"gr_jax.{name}", modules) for name, modules in PACKAGES.items()}
    for name, text in pages.items():
        file = API / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _page(package: str, modules: tuple[str, ...]) -> str:
    parts = [_section(package, "=")]
    return "\n".join(parts + [_section(f"{package}.{module}", "-") for module in modules])


def _section(module: str, line: str) -> str:
    is_package = API.parents[1].joinpath(*module.split(".")).is_dir()
    options = "   :members:\n" + "   :imported-members:\n" * is_package
    return f"{module}\n{line * len(module)}\n\n.. automodule:: {module}\n{options}"


def complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links to packages lead to their pages, and an index has the tree of the pages that it links to."""
    source[0] = _TO_PACKAGE.sub(lambda match: f"](/api/{match[1] or 'top'}.rst)", source[0])
    if docname.rpartition("/")[2] == "index":
        pages = r"/api/(\w+)\.rst" if docname == "api/index" else r"(\w+|\w+/index)\.md"
        linked = dict.fromkeys(re.findall(rf"\]\({pages}[)#]", source[0]))
        source[0] += "\n".join(["", "", "```{toctree}", ":hidden:", "", *linked, "```", ""])


def setup(app: Sphinx) -> dict[str, object]:
    write_api()
    app.connect("source-read", complete)
    return {"parallel_read_safe": True, "version": "1"}
