"""Which commands of the documentation are run as printed, run smaller, or not run, and why."""

from __future__ import annotations

from tests.gpu.checklist import read_steps

NOT_RUN = {
    ". .venv/bin/activate": "the environment of the tests is active already",
    "pip install '.[cpu]' -c constraints.txt": "downloads packages",
    "pip install '.[gpu]' -c constraints.txt -c constraints-gpu.txt": (
        "downloads packages; `make test-nightly` installs them"
    ),
    "make gpu-check": "needs a GPU",
    "make sbom": "installs packages; tests/supply/test_sbom.py writes the same",
    "python -m training reproduce cdf --phototour phototour --hpatches hpatches-release": (
        "needs the data sets and a GPU; tests/unit/training/lab/test_reproduce.py runs it smaller"
    ),
    "python -m training reproduce cdf --table 1 --generated --scale 0.0002": (
        "trains for minutes; tests/unit/training/lab/test_reproduce.py runs it smaller"
    ),
    "pip install -e .": (
        "changes the environment; tests/unit/training/runs/test_plugins.py installs it elsewhere"
    ),
    "python -m training train mine.toml --set run.steps=20 --out tries": (
        "needs the plug-in; tests/unit/training/runs/test_plugins.py trains with it"
    ),
    "python -m training train mine.toml": (
        "needs the plug-in; tests/unit/training/runs/test_plugins.py trains with it"
    ),
    "python -m training export runs/mine -o my-model": "needs the run of the plug-in",
    "matchserve match a.jpg b.jpg --model ./my-model": "needs the model of the plug-in",
    "python docs/research/estimate_gpu.py": "tests/gpu/test_checklist.py runs it",
    "pip install -e '.[cpu,train]' -c constraints.txt": "downloads packages",
    "matchserve match examples/images/street/a.jpg examples/images/street/b.jpg --model ./mine": (
        "needs a tuned model; docs/guides/train.md matches with one"
    ),
    "docker build --target cpu -t matchserve:cpu .": "needs a container engine",
    "docker build --target gpu -t matchserve:gpu .": "needs a container engine",
    "docker compose up": "needs a container engine",
    "docker compose --profile gpu up gpu": "needs a container engine and a GPU",
    'docker run -p 8000:8000 -v "$PWD/my-models:/models:ro" -e MATCHSERVE_MODELS_DIR=/models '
    "-e MATCHSERVE_DEFAULT_MODEL=first-model matchserve:cpu": "needs a container engine",
    "kubectl apply -f deploy/kubernetes.yaml": "needs a cluster",
    "python -m training verify hardnet": (
        "trains for half a minute; tests/unit/training/test_cli.py runs a smaller case"
    ),
    "python -m training evaluate compact --benchmark speed --data photos --threads 1": (
        "times for half a minute; tests/unit/training/evaluation/test_benchmarks.py runs it smaller"
    ),
    "python -m training data phototour --data-dir liberty -o stores/phototour-liberty": (
        "needs the PhotoTour data; tests/unit/training/data/test_public.py imports a small one"
    ),
    "python -m training data hpatches --data-dir hpatches-release --split a -o stores/hpatches-a": (
        "needs the HPatches data; tests/unit/training/data/test_public.py imports a small one"
    ),
}

NOT_RUN |= {
    "python -m training tune photos -o mine": (
        "trains; tests/unit/training/lab/test_tuning.py runs it on fewer and smaller photographs"
    ),
    "pip install './matchserve-0.1.0-py3-none-any.whl[cpu]' -c constraints.txt": (
        "downloads packages; tests/unit/matchserve/test_package.py installs a wheel"
    ),
    "kubectl apply -f deploy/collection-job.yaml": "needs a cluster",
    "matchserve collection match scenes/corner -o shared --part $SLURM_ARRAY_TASK_ID/64": (
        "needs a SLURM array"
    ),
}
NOT_RUN |= {
    "matchserve collection match scenes/corner -o shared --dask tcp://scheduler:8786": (
        "needs a cluster; tests/faults/test_remote_collections.py starts one"
    ),
    "matchserve collection match scenes/corner -o s3://bucket/flight1 "
    "--part $SLURM_ARRAY_TASK_ID/64": "needs a bucket; see tests/faults/test_remote_collections.py",
}
NOT_RUN |= {
    "matchserve match first.tif second.tif --map-coordinates --verify similarity "
    "--json on-map.json": "needs GeoTIFF files; tests/unit/matchserve/test_geotiff.py makes some",
}
NOT_RUN |= {step.command: "needs a GPU; see tests/gpu/checklist.py" for step in read_steps()}

NOT_RUN |= {
    "python -m training export runs/sdgm-cpu -o mine-int8 --int8": (
        "exports for long; tests/unit/training/export/test_export.py makes such a model"
    ),
    "python -m training export runs/sdgm-cpu -o mine-pooled --domain-size 1.4": (
        "exports for long; tests/unit/training/export/test_pooling.py makes such a model"
    ),
    "python -m training calibrate ./mine --scenes scenes --workspace work --photos photos "
    "--pairs 40": "the same command with --write is run",
}

# Lines of README that are printed in the guide too are run there, once: training takes time.
README, GUIDE = "README.md", "docs/guides/train.md"

INSTEAD = {
    "make serve": "make -n serve",
    "make test": "make -n test",
    "make wheel": "make -n wheel",
    # The photographs of the other commands show different things.
    "matchserve reconstruct photos/ -o out/": (
        "matchserve reconstruct scenes/corner -o out/ --max-keypoints 1000"
    ),
}

TINY_DATA = "--set data.train.0.path=synthetic:1:80 --set data.validation.0.path=synthetic:2:40"
TINY_RUN = "--set run.steps=4 --set run.batch=16 --set run.validate_every=4"

TINY_VIEWS = "--levels easy,hard --max-classes 60 --workers 1"

# The same command on less: options that are appended.
SMALLER = {
    "matchserve reconstruct scenes/corner -o reconstruction": "--max-keypoints 1000",
    "matchserve collection match scenes/corner -o matched": "--max-keypoints 1000",
    "python -m training data photos photos -o stores/patches --magnification 20": TINY_VIEWS,
    "python -m training data photos photos -o stores/all --magnification 20": TINY_VIEWS,
    "python -m training data photos photos -o stores/all-mine --magnification 36 --size 48": (
        TINY_VIEWS
    ),
    "python -m training data sequences photos -o all-sequences": "--levels easy --workers 1",
    "python -m training data sequences photos -o sequences --only stores/held-out": (
        "--levels easy --workers 1"
    ),
    "python -m training data scenes scenes/* -o stores/scenes --workspace work "
    "--magnification 20": "--max-keypoints 1500 --workers 1",
    "python -m training data modal registered -o stores/modal --magnification 20": "--workers 1",
    "python -m training evaluate ./mine --benchmark homography --data sequences": (
        "--max-keypoints 200"
    ),
    "python -m training evaluate compact ./mine --benchmark homography --data sequences "
    "--json result.json": "--max-keypoints 200",
    "python -m training evaluate ./mine --benchmark pairs --data stores/held-out": "--limit 1000",
    "python -m training train synthetic": f"{TINY_RUN} {TINY_DATA}",
    "python -m training train sdgm-cpu --set data.train.0.path=stores/photos "
    "--set data.validation.0.path=stores/held-out": TINY_RUN,
    "python -m training train compact-tune": TINY_RUN,
    "python -m training calibrate ./mine --scenes scenes --workspace work --photos photos "
    "--pairs 40 --write": "--pairs 20 --keypoints 300",
    "./describe a.jpg": "http://localhost:8000",
}
