import pytest

from training.runs.schedule import OptimOptions, learning_rate


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OptimOptions(lr=1.0, schedule="linear"), {0: 1.0, 500: 0.5, 999: 0.001}),
        (OptimOptions(lr=1.0, schedule="cosine"), {0: 1.0, 500: 0.5}),
        (OptimOptions(lr=1.0, schedule="constant"), {0: 1.0, 999: 1.0}),
        (OptimOptions(lr=1.0, schedule="halving"), {0: 1.0, 100: 0.5, 950: 2**-9}),
        (
            OptimOptions(lr=1.0, schedule="milestones", milestones=(0.5, 0.75)),
            {499: 1.0, 500: 0.1, 750: 0.01},
        ),
        (OptimOptions(lr=1.0, schedule="constant", warmup=0.01), {0: 1 / 11, 9: 10 / 11, 10: 1}),
    ],
)
def test_learning_rates(options: OptimOptions, expected: dict[int, float]) -> None:
    for step, rate in expected.items():
        assert learning_rate(options, step, 1000) == pytest.approx(rate, rel=1e-6)
