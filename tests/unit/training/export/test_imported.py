"""Published weights: the layouts of others, with random weights, served like their own forward."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from matchserve.models.onnx_model import OnnxDescriptor
from training.errors import CheckpointError, DataError, ExportRefused
from training.export.cards import CardText
from training.export.imported import import_model
from training.networks.layouts import build_published, read_published
from training.networks.published import read_weights

TEXT = CardText(licence="MIT")


class Frn(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, channels, 1, 1) + 0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(1, channels, 1, 1))
        self.eps: Tensor
        self.register_buffer("eps", torch.tensor([1e-6]))

    def forward(self, x: Tensor) -> Tensor:
        norm = (x.pow(2).mean((2, 3), keepdim=True) + self.eps.abs()).rsqrt()
        return self.weight * x * norm + self.bias


class Tlu(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(-torch.rand(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.max(x, self.tau)


SHAPE = ((1, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))


def norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, affine=False)
    layer.running_mean = 0.1 * torch.randn(channels)
    layer.running_var = torch.rand(channels) + 0.5
    return layer


class HardNet(nn.Module):
    """`features.N`, patches standardised by the unbiased deviation."""

    def __init__(self, dim: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in SHAPE:
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU()]
        layers += [nn.Dropout(0.3), nn.Conv2d(128, dim, 8, bias=False), norm(dim)]
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        mean, std = flat.mean(1), flat.std(1) + 1e-7
        scaled = (x - mean[:, None, None, None]) / std[:, None, None, None]
        return torch.flatten(self.features(scaled), 1)


class SosNet(nn.Module):
    """`layers.N`, beginning with InstanceNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.InstanceNorm2d(1), *HardNet().features)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.layers(x), 1)


class HyNet(nn.Module):
    """`layerK.N`, with FRN and TLU on the raw patch."""

    def __init__(self) -> None:
        super().__init__()
        for number, (before, after, stride) in enumerate(SHAPE, 1):
            first = [Frn(1), Tlu(1)] if number == 1 else []
            conv = nn.Conv2d(before, after, 3, stride, 1)
            setattr(self, f"layer{number}", nn.Sequential(*first, conv, Frn(after), Tlu(after)))
        self.layer7 = nn.Sequential(nn.Dropout(0.3), nn.Conv2d(128, 128, 8, bias=False), norm(128))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(1, 8):
            x = getattr(self, f"layer{number}")(x)
        return x.flatten(1)


class TFeat(nn.Module):
    """`features.N` and `descr.N`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.InstanceNorm2d(1), nn.Conv2d(1, 32, 7), nn.Tanh(), nn.MaxPool2d(2, 2),
            nn.Conv2d(32, 64, 6), nn.Tanh(),
        )  # fmt: skip
        self.descr = nn.Sequential(nn.Linear(64 * 8 * 8, 128), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.descr(self.features(x).flatten(1))
        return rows


THEIRS = {"hardnet": HardNet, "sosnet": SosNet, "hynet": HyNet, "sdgm": HyNet, "tfeat": TFeat}


def save_pickle(content: object, path: Path) -> None:
    """Write a file as the authors of the networks do."""
    torch.save(content, path)  # noqa: TID251


def patches(count: int = 20) -> np.ndarray:
    torch.manual_seed(5)
    smooth = nn.functional.interpolate(torch.rand(count, 1, 6, 6), size=32, mode="bilinear")
    return (255 * smooth).to(torch.uint8).numpy()


@torch.no_grad()
def expected(net: nn.Module, given: np.ndarray) -> np.ndarray:
    rows = net.eval()(torch.from_numpy(given).float() / 255)
    return nn.functional.normalize(rows, dim=1).numpy()


@pytest.mark.parametrize(
    "name", ["hardnet", pytest.param("sosnet", marks=pytest.mark.slow), "hynet", "tfeat"]
)
def test_the_served_model_describes_as_the_published_network(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = THEIRS[name]()
    file = tmp_path / "weights.pth"
    save_pickle({"epoch": 9, "state_dict": theirs.state_dict()}, file)
    given = patches()
    golden = tmp_path / "golden.npz"
    np.savez(golden, patches=given, descriptors=expected(theirs, given))
    out = tmp_path / f"{name}-liberty"
    card, _ = import_model(file, name, out, TEXT, golden=golden)
    found = OnnxDescriptor(out).describe_patches(given)
    # InstanceNorm adds its epsilon to the variance of patches scaled to 0..1.
    tolerance = 1e-3 if name in ("sosnet", "tfeat") else 2e-5
    np.testing.assert_allclose(found, expected(theirs, given), rtol=0, atol=tolerance)
    assert (card.dim, card.licence, card.method) == (128, "MIT", f"published weights of {name}")
    entries = json.loads((out / "card.json").read_text())["recipe"]
    assert set(entries) == {"name", "network", "imported_sha256"}
    # Training can start from it.
    assert read_weights(out)[0] == out / "model.onnx"


def test_safetensors_are_read_in_the_order_of_the_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = TFeat()
    save_file(theirs.state_dict(), tmp_path / "tfeat.safetensors")
    _, net = build_published("tfeat", read_published(tmp_path / "tfeat.safetensors"))
    found = expected(net, 255 * patches().astype(np.float32))
    np.testing.assert_allclose(found, expected(theirs, patches()), rtol=0, atol=1e-3)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.pth"
    save_pickle(HardNet().state_dict(), file)
    with pytest.raises(CheckpointError, match=r"w\.pth: not the weights of hynet: the file has 14"):
        import_model(file, "hynet", tmp_path / "m", TEXT)
    narrow = {key: value[:16] for key, value in HardNet().state_dict().items() if value.dim()}
    save_pickle(narrow, file)
    with pytest.raises(
        CheckpointError, match=r"layer 'features\.0': expected weight of shape \(32"
    ):
        import_model(file, "hardnet", tmp_path / "m", TEXT)
    with pytest.raises(CheckpointError, match="did you mean 'hardnet'"):
        import_model(file, "hardnett", tmp_path / "m", TEXT)
    assert not (tmp_path / "m").exists()


def test_learned_scales_are_refused(tmp_path: Path) -> None:
    state = HardNet().state_dict()
    state["features.1.weight"] = torch.full((32,), 2.0)
    save_pickle(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="learned scales"):
        import_model(tmp_path / "w.pth", "hardnet", tmp_path / "m", TEXT)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    save_pickle(HardNet(), tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="not a file of plain weights"):
        import_model(tmp_path / "w.pth", "hardnet", tmp_path / "m", TEXT)
    (tmp_path / "w.pth").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"w\.pth"):
        import_model(tmp_path / "w.pth", "hardnet", tmp_path / "m", TEXT)


def test_a_golden_forward_must_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_pickle(HardNet().state_dict(), tmp_path / "w.pth")
    np.savez(tmp_path / "g.npz", patches=patches(), descriptors=expected(HardNet(), patches()))
    with pytest.raises(ExportRefused, match=r"g\.npz: the network differs"):
        import_model(tmp_path / "w.pth", "hardnet", tmp_path / "m", TEXT, golden=tmp_path / "g.npz")
    for damaged in (b"", b"PK\x03\x04junk"):
        (tmp_path / "g.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"g\.npz"):
            import_model(
                tmp_path / "w.pth", "hardnet", tmp_path / "m", TEXT, golden=tmp_path / "g.npz"
            )
