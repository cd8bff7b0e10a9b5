"""The errors of the training package, as types under `MatchServeError`.

MatchServeError
└── TrainingError            base of the errors below
    ├── RecipeError          a recipe or an override is not valid; names the file, line and key
    ├── DataError            a patch store or another input file is missing or not as expected
    ├── CheckpointError      weights are missing, damaged or belong to another recipe
    ├── NonFiniteLoss        the loss became NaN or infinite; names the saved batch
    ├── RunBusy              another process is training the same run
    ├── RanksNotConnected    the processes of a run with several did not find each other in time
    ├── RunStopped           Ctrl-C or SIGTERM stopped a run; its checkpoint is saved
    └── ExportRefused        the exported model differs from the trained network
"""

from __future__ import annotations

from matchserve.errors import MatchServeError


class TrainingError(MatchServeError):
    """Base class of all errors of the training package."""

    code = "training_error"


class RecipeError(TrainingError):
    """A recipe, a study or an override is not valid."""

    code, exit_code = "recipe_error", 2


class DataError(TrainingError):
    """An input file is missing, damaged or not as expected."""

    code, exit_code = "data_error", 65


class CheckpointError(TrainingError):
    """Weights are missing, damaged or belong to another recipe."""

    code, exit_code = "checkpoint_error", 65


class NonFiniteLoss(TrainingError):
    """Training stopped because the loss or a gradient is not finite."""

    code, exit_code = "non_finite_loss", 70


class RunBusy(TrainingError):
    """Another process is writing to the run."""

    code, exit_code = "run_busy", 75


class RanksNotConnected(TrainingError):
    """The processes that train together did not all start and connect in time."""

    code, exit_code = "ranks_not_connected", 75


class RunStopped(TrainingError):
    """The run was stopped by a signal, after a checkpoint was saved."""

    code, exit_code = "run_stopped", 130


class ExportRefused(TrainingError):
    """The model was not written, because it differs from the trained network."""

    code, exit_code = "export_refused", 70
