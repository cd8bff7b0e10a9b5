"""The commands `python -m training retrieval train` and `python -m training retrieval measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    no_args_is_help=True, help="Train and measure the codebook of a model for retrieval."
)

Model = Annotated[str, typer.Argument(help="Model name, or model directory (with a /).")]
Store = Annotated[Path, typer.Option(help="Folder that keeps the features of all images.")]
Half = Annotated[
    int | None,
    typer.Option(min=0, max=1, help="Use only every second photograph: 0 the first ones, or 1."),
]
Keypoints = Annotated[int, typer.Option(help="Maximum number of keypoints per image.", min=1)]
Workers = Annotated[int, typer.Option(help="Number of processes that describe images.", min=1)]


@app.command()
def train(
    model: Model,
    photos: Annotated[list[Path], typer.Option(help="Folder of photographs; may be repeated.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Codebook to write, words.npz.")],
    store: Store,
    *,
    half: Half = None,
    words: Annotated[int, typer.Option(help="Number of words.", min=1)] = 8192,
    keypoints: Keypoints = 2048,
    workers: Workers = 1,
    seed: Annotated[int, typer.Option(help="Random seed of k-means.")] = 0,
) -> None:
    """Train the codebook of a model on photographs, and write it beside the model."""
    import numpy as np

    from matchserve.retrieval.codebook import as_vectors, train_codebook, write_codebook
    from training.retrieval.described import describe_all, half_of, setup_of

    images = half_of(photos, half)
    features = list(describe_all(setup_of(model, store, keypoints), images, workers).values())
    vectors = np.concatenate([as_vectors(f.descriptors) for f in features])
    named = ", ".join(sorted(folder.resolve().name for folder in photos))
    trained_on = f"{len(images)} photographs of {named}"
    codebook = train_codebook(
        vectors, features[0].fingerprint, words=words, seed=seed, trained_on=trained_on
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_codebook(output, codebook)
    typer.echo(f"{len(codebook)} words from {len(vectors)} descriptors of {trained_on}: {output}")


@app.command()
def measure(
    model: Model,
    scenes: Annotated[
        list[Path], typer.Option(help="Folder of scenes, each a folder of images; repeatable.")
    ],
    words: Annotated[Path, typer.Option(help="Codebook of the model, words.npz.")],
    store: Store,
    distractors: Annotated[
        list[Path] | None, typer.Option(help="Folder of other photographs; may be repeated.")
    ] = None,
    *,
    half: Half = None,
    keypoints: Keypoints = 2048,
    workers: Workers = 1,
) -> None:
    """Print how well every image finds the others of its scene among all images."""
    from matchserve.retrieval.codebook import read_codebook
    from training.retrieval import measure as measuring
    from training.retrieval.described import describe_all, half_of, setup_of

    setup = setup_of(model, store, keypoints)
    by_scene = measuring.find_scenes(scenes)
    scene_of = {f"{scene}:{name}": scene for scene, images in by_scene.items() for name in images}
    paths = {f"{scene}:{n}": p for scene, images in by_scene.items() for n, p in images.items()}
    others = half_of(distractors, half) if distractors else {}
    features = describe_all(setup, {**paths, **others}, workers)
    groups: dict[str, list[str]] = {}
    for name, scene in scene_of.items():
        groups.setdefault(scene, []).append(name)
    covisible = measuring.covisible_pairs(setup, groups, features)
    fingerprint = next(iter(features.values())).fingerprint
    figures = measuring.measure(features, read_codebook(words, fingerprint), scene_of, covisible)
    title = f"{model}: {len(features)} images, {len(covisible) // 2} covisible pairs"
    table = Table("scenes", "queries", "mAP %", "R@10 %", "R@20 %", title=title)
    for group, values in figures.items():
        shares = (values.mean_ap, values.recall_10, values.recall_20)
        table.add_row(group, str(values.queries), *(f"{100 * share:.1f}" for share in shares))
    Console().print(table)
