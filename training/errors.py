"""What can go wrong while training, as types under `MatchServeError`.

MatchServeError
└── TrainingError            anything below
    ├── RecipeError          a recipe or an override; names the file and the key
    ├── DataError            a patch store or another input file; names the file and what it lacks
    ├── CheckpointError      no usable checkpoint where there should be one
    ├── NonFiniteLoss        the loss became NaN or infinite; names the saved batch
    └── ExportRefused        the exported model does not agree with the trained one
"""

from __future__ import annotations

from matchserve.errors import MatchServeError


class TrainingError(MatchServeError):
    """Base of every error of the training package."""

    code = "training_error"


class RecipeError(TrainingError):
    """The recipe cannot be understood."""

    code, exit_code = "recipe_error", 2


class DataError(TrainingError):
    """A file of a data set is missing, damaged or not as expected."""

    code, exit_code = "data_error", 65


class CheckpointError(TrainingError):
    """Checkpoints are there and none can be read, or they belong to another recipe."""

    code, exit_code = "checkpoint_error", 65


class NonFiniteLoss(TrainingError):
    """Training stopped because the loss is not a finite number."""

    code, exit_code = "non_finite_loss", 70


class ExportRefused(TrainingError):
    """The model was not written, because it does not do what the network does."""

    code, exit_code = "export_refused", 70
