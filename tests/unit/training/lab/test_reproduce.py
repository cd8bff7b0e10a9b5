"""Reproductions, from nothing to a table, on tiny generated data sets of the real layouts."""

from pathlib import Path

import pytest

from tests.unit.training.test_cli import run
from training.data.public.hpatches import HPatches
from training.data.public.phototour import PhotoTour
from training.data.store.reader import PatchStore
from training.errors import DataError, RecipeError
from training.lab import reproduce as module
from training.lab.papers import COLUMNS, PAPERS, TASKS, find_tables
from training.lab.reproduce import Reproduction, generate_data, reproduce_row, to_markdown
from training.recipes.reading import shipped_recipes

SCALE = 1e-5


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    out = tmp_path_factory.mktemp("reproduce")
    tours, release = generate_data(out / "data", points=60)
    return Reproduction(out, tours, release, SCALE)


def test_the_tables_are_complete() -> None:
    for tables in PAPERS.values():
        for table in tables:
            for row in table.rows:
                columns = COLUMNS if row.benchmark == "phototour" else TASKS
                assert len(row.printed) == len(columns)
                assert set(row.recipes) <= set(shipped_recipes())
    assert find_tables("cdf", 3)[0].rows[0].split == "full"
    with pytest.raises(RecipeError, match="did you mean 'sdgm'"):
        find_tables("sdgn")
    with pytest.raises(RecipeError, match="these tables are known: 1, 3"):
        find_tables("cdf", 2)


def test_generated_sets_have_the_real_layouts(job: Reproduction) -> None:
    assert job.phototour is not None
    assert job.hpatches is not None
    tour = PhotoTour.open(job.phototour / "liberty")
    pairs = tour.pairs()
    assert (len(pairs), pairs.is_match.mean()) == (1000, 0.5)
    assert (tour.points[pairs.left] == tour.points[pairs.right]).tolist() == pairs.is_match.tolist()
    release = HPatches.open(job.hpatches)
    assert release.test_sequences("a") == ["i_2", "v_2"]
    assert len(release.lengths) == 6


def test_a_table_of_phototour(job: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = find_tables("cdf", 1)
    row = table.rows[0]
    cells = list(reproduce_row(row, job))
    assert [cell.paper for cell in cells] == [1.21, 2.01, 0.39, 0.68, 1.51, 1.29]
    assert cells[0].column == "notredame -> liberty"
    assert all(0 <= cell.ours < 95 for cell in cells)
    curves = list((job.out / "curves").glob("cdf-paper-phototour-*/curves.png"))
    assert len(curves) == 3
    text = to_markdown(table.title, cells, job, ["x"])
    ours = cells[0].ours
    assert f"| notredame -> liberty | 1.21 | {ours:.2f} | {ours - 1.21:+.2f} |" in text
    # Asked again, nothing is trained.
    monkeypatch.setattr(module, "train", lambda _: pytest.fail("trained again"))
    assert list(reproduce_row(row, job)) == cells


def test_a_table_of_hpatches(job: Reproduction) -> None:
    (table,) = find_tables("stochastic", 2)
    cells = list(reproduce_row(table.rows[0], job))
    assert [cell.column for cell in cells] == list(TASKS)
    assert [cell.paper for cell in cells] == [81.12, 19.67, 41.99]
    assert all(0 < cell.ours <= 100 for cell in cells)
    pairs = PatchStore.open(job.out / "stores" / "hpatches-a-train-200-pairs")
    assert len(pairs) == 100


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["sdgm", "cdf", "adasample"])
def test_the_other_papers(paper: str, job: Reproduction) -> None:
    for table in find_tables(paper):
        for row in table.rows:
            assert all(0 <= cell.ours <= 100 for cell in reproduce_row(row, job))


def test_missing_data_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Reproduction(tmp_path, tmp_path, tmp_path / "none")
    with pytest.raises(DataError, match=r"notredame\.zip   # MD5 509eda8535847b8c0a90bbb210c83484"):
        next(reproduce_row(find_tables("sdgm")[0].rows[0], nothing))
    with pytest.raises(DataError, match="hpatches-dataset"):
        next(reproduce_row(find_tables("stochastic")[0].rows[0], nothing))
    out = ("--out", str(tmp_path / "out"))
    assert run(monkeypatch, "reproduce", "sdgm", "--phototour", str(tmp_path), *out) == 65
    assert "--generated" in capsys.readouterr().err
