"""`python -m training`."""

from __future__ import annotations

import sys

# Packages of the extra `[train]`; the message names the constraints because without them pip
# installs gigabytes of CUDA libraries.
EXTRA = (
    "matplotlib",
    "onnx",
    "onnxscript",
    "safetensors",
    "scipy",
    "tensorboard",
    "tomli_w",
    "torch",
)
INSTALL = "pip install -e '.[cpu,train]' -c constraints.txt"
EXIT_CODE = 78


def run() -> None:
    """Run the command line, or say in one line what to install."""
    try:
        from training.cli import main

        main()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        sys.stderr.write(f"error: training needs the package {package}; run: {INSTALL}\n")
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    run()
