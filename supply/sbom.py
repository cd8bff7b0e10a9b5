"""Write the bill of materials of an image as CycloneDX JSON (`make sbom`).

Packages and hashes come from the lock file, licences from the packages that are installed here,
and models from their cards.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from supply import lock

MODELS = lock.ROOT / "models"
_IMAGES = ("cpu", "gpu")


def make(image: str) -> Bom:
    """Return the bill of materials of an image."""
    pins = lock.read(lock.FOLDER / f"{image}.txt")
    application = _application()
    components = [*map(_package, pins), *_models()]
    # The same contents have the same number, so two builds can be compared.
    content = "\n".join(f"{c.name} {c.version} {c.hashes}" for c in [application, *components])
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, content))
    bom.metadata.component = application
    bom.metadata.timestamp = _timestamp()
    bom.register_dependency(application, components)
    return bom


def _application() -> Component:
    with (lock.ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        licenses=[LicenseFactory().make_from_string(project["license"])],
        bom_ref=project["name"],
    )


def _package(pin: lock.Pin) -> Component:
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", name=pin.name, version=pin.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=pin.sha256)],
        licenses=_licenses(pin),
        bom_ref=f"{pin.name}=={pin.version}",
    )


def _licenses(pin: lock.Pin) -> list[License]:
    """Return the licence of a package, if this version of it is installed."""
    try:
        fields = metadata.metadata(pin.name).json
    except metadata.PackageNotFoundError:
        return []
    # Some packages put the whole text of the licence in the older field.
    text = str(fields.get("license_expression") or fields.get("license") or "")
    if fields["version"] != pin.version or not text or "\n" in text:
        return []
    return [LicenseFactory().make_from_string(text)]


def _models() -> list[Component]:
    cards = [json.loads(path.read_text("utf-8")) for path in sorted(MODELS.glob("*/card.json"))]
    return [
        Component(
            name=card["name"],
            version=card["version"],
            type=ComponentType.MACHINE_LEARNING_MODEL,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=card["sha256"])],
            bom_ref=f"model {card['name']}",
        )
        for card in cards
    ]


def _timestamp() -> datetime:
    """Return the time of the build, which SOURCE_DATE_EPOCH sets for reproducible ones."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.now(UTC) if seconds is None else datetime.fromtimestamp(int(seconds), UTC)


def main() -> None:
    """Write the bill of materials of each image to a folder."""
    parser = argparse.ArgumentParser(description="Write the bills of materials of the images.")
    parser.add_argument("folder", type=Path, help="folder of the files NAME.cdx.json")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for image in _IMAGES:
        bom = make(image)
        path = folder / f"matchserve-{image}.cdx.json"
        path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path}: {len(bom.components)} components\n")


if __name__ == "__main__":
    main()
