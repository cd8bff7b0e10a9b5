"""Every mistake in a recipe is one line with file, line, key, what is legal and a suggestion."""

from pathlib import Path

import pytest

from training.errors import RecipeError
from training.runs.recipe import load_recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[optim]\nlearning_rate = 1",
            ":2: unknown key 'optim.learning_rate'; legal keys are name",
        ),
        ("[optim]\nlt = 1", ":2: unknown key 'optim.lt', did you mean 'lr'?"),
        ("[los]\nname = 'sdgm'", ":1: unknown key 'los', did you mean 'loss'?"),
        ("[loss]\nname = 'sdgn'", ":2: loss.name: no loss 'sdgn', did you mean 'sdgm'?"),
        ("[loss]\nname = 'zzz'", "loss.name: no loss 'zzz'; known are sdgm, cdf, adasample"),
        ("[sampler]\nname = 'uniforn'", "sampler.name: no sampler 'uniforn', did you mean 'unif"),
        (
            "[loss]\nname = 'sdgm'\nmargn = 1",
            ":3: unknown key 'loss.margn', did you mean 'margin'?",
        ),
        ("[loss]\nmargin = 1", ":1: loss: expected a table with a name"),
        ("loss = 3", ":1: loss: expected a table with a name"),
        (
            "[network]\nname = 'l3net'",
            ":2: network.name: no network 'l3net', did you mean 'l2net'?",
        ),
        ("[network]\nhead = 'binary'", ":2: network.head: the loss sdgm needs the head unit"),
        (
            "[network]\nhead = 'binary'\ndim = 12\n[loss]\nname = 'cdf'",
            ":3: network.dim: bits are packed into bytes",
        ),
        ("[network]\nhead = 'units'", ":2: network.head: 'units' is not one of 'unit', 'binary', "),
        ("[network]\nhead = 'units'", "did you mean 'unit'?"),
        ("[optim]\nlr = 'fast'", ":2: optim.lr: expected a number, found 'fast'"),
        ("[optim]\nlr = 0", ":2: optim.lr: expected more than 0, found 0"),
        ("[run]\nsteps = 1.5", "run.steps: expected an integer, found 1.5"),
        ("[run]\nsteps = true", "run.steps: expected an integer, found True"),
        ("[run]\namp = 1", "run.amp: expected true or false, found 1"),
        ("[run]\nbatch = 1", "run.batch: expected at least 2, found 1"),
        ("init_from = 3", "init_from: expected text, found 3"),
        ("optim = 3", "optim: expected a table, found 3"),
        ("[[data.train]]\nweight = 1", ":1: missing key 'data.train.0.path'"),
        (
            "[[data.train]]\npath = 'x'\nweight = 0",
            ":3: data.train.0.weight: expected more than 0, found 0",
        ),
        ("[data]\ntrain = 'x'", ":2: data.train: expected a list, found 'x'"),
        ("seed = ", "r.toml: not TOML"),
        ("[network]\ndropout = 1.0", "network.dropout: expected at least 0 and less than 1"),
        ("seed = -1", ":1: seed: expected at least 0, found -1"),
        ("[loss]\nname = 'sdgm'\nmargin = 1.0", "loss.margin: expected at least 0 and less than 1"),
        ("[loss]\nname = 'sdgm'\nema = -3", "loss.ema: expected more than 0 and at most 1"),
        ("[loss]\nname = 'sdgm'\nema = nan", "loss.ema: expected more than 0 and at most 1"),
        ("[loss]\nname = 'sdgm'\nalpha = inf", "loss.alpha: expected at least 0, found inf"),
        ("[loss]\nname = 'cdf'\nbins = 1", ":3: loss.bins: expected 0 or at least 2, found 1"),
        ("[loss]\nname = 'hardest'\ndivisor = 0", "loss.divisor: expected at least 1, found 0"),
        (
            "[sampler]\nname = 'adasample'\ncandidates = 1",
            "sampler.candidates: expected at least 2",
        ),
        ("[sampler]\nname = 'adasample'\nrate = 0", "sampler.rate: expected more than 0"),
        ("[sampler]\nname = 'adasample'\nlam = nan", "sampler.lam: expected at least 0, found nan"),
        ("[data]\nvalidation_pairs = 0", "data.validation_pairs: expected at least 2, found 0"),
        ("[augment]\nscale = -0.1", "augment.scale: expected at least 0, found -0.1"),
        ("[optim]\nschedule = 'milestones'", ":1: optim.milestones: expected at least one"),
        (
            "[optim]\nmilestones = [0.5, 30.0]",
            ":2: optim.milestones.1: expected at least 0 and at most 1, found 30.0",
        ),
    ],
)
def test_errors_name_file_line_key_and_nearest(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert message in caught.value.message
    assert "r.toml" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2
