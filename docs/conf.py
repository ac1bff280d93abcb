"""Configuration of Sphinx. ``make docs`` builds without a network, and the pages are read without one."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

import pyro_hyperbolic

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]  # some figures are drawn by functions of experiments and examples
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "live")]
import pages  # noqa: E402

project = "pyro_hyperbolic"
author = copyright = "The pyro_hyperbolic developers"
version = release = pyro_hyperbolic.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # datasets and plotting write "Args:", the rest ":param x:"
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx.ext.viewcode",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",  # tutorials are notebooks, and the reports of the experiments are Markdown
    "sphinx_copybutton",
    "notebooks",  # a link to the notebook on each page of one
]
exclude_patterns = ["_build"]
nitpicky = False  # the types of torch and Pyro have no pages here

# Notebooks are shown as they are kept: docs/notebooks.py runs them.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]

# What is copied has no prompts and no results.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# One entry per public name, written out in docs/api; tests/test_docs.py checks that none is missing.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # nn.Module's own texts would fill the pages
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 140
add_module_names = False
toc_object_entries = False

# The extension copies MathJax into the pages: nothing is fetched when one is read.
mathjax3_config = {"options": {"enableMenu": False}}  # the entries of its menu load further files

# Figures are made by the code on the page while the pages are built, so that none is older than the package.
plot_formats = [("png", 192)]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = False
plot_working_directory = str(ROOT / "docs")
plot_rcparams = {"savefig.bbox": "tight"}
plot_apply_rcparams = True

html_theme = "sphinx_rtd_theme"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["formulas.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_depth": 3}


def setup(app: Sphinx) -> None:
    def write_live_pages(app: Sphinx, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            pages.write(Path(app.outdir, "live"))

    app.connect("build-finished", write_live_pages)
