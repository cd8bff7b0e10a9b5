"""MkDocs hooks: fill in the generated parts of pages and add files from outside `docs/`.

A page asks for a generated part with a line `<!-- generate: NAME -->`, where NAME is a key of
`PARTS`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS))

from generate import calibration, cli, http_api, models, recipes, settings  # noqa: E402

MARK = re.compile(r"^<!-- generate: ([a-z-]+) -->$", re.MULTILINE)
PARTS: dict[str, Callable[[], str]] = {
    "calibration": calibration.figures,
    "cli-matchserve": cli.matchserve_commands,
    "cli-training": cli.training_commands,
    "http-api": http_api.routes,
    "models": models.page,
    "recipes": recipes.table,
    "settings": settings.table,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the OpenAPI schema and the models' reliability diagrams to the site."""
    schema = json.dumps(http_api.schema(), indent=1, sort_keys=True)
    files.append(File.generated(config, "reference/openapi.json", content=schema))
    for name, diagram in calibration.diagrams().items():
        path = calibration.site_path(name)
        files.append(File.generated(config, path, abs_src_path=str(diagram)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace each `<!-- generate: NAME -->` line by what NAME generates."""
    return MARK.sub(lambda mark: PARTS[mark[1]](), markdown)
