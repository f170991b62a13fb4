"""The site: `make docs`. A warning is an error."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

import gr_jax
import gr_jax.training

for package in (gr_jax, gr_jax.training):
    for name in package.__all__:  # fetched when first used, and seen only then
        getattr(package, name)

project = "gr_jax"
author = "the gr_jax authors"
copyright = author
version = release = gr_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "plain_docstrings",
    "site_pages",
]
exclude_patterns = ["_build", "_extensions"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Signatures name arguments and defaults; shapes stand in the docstrings and in the source, one click away.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_param = False  # "a, b: …" are two arguments, not one with a type
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "gr_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
