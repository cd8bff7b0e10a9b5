from itertools import pairwise
from typing import Any

import pytest
import torch

from training.errors import RecipeError
from training.networks import NETWORKS, NetworkOptions, build_network
from training.networks.cost import mac_count, parameter_count
from training.networks.layers import (
    BatchNorm,
    DescriptorNet,
    FilterResponseNorm,
    Standardise,
    ThresholdedLinear,
)
from training.networks.narrow import is_narrower, narrowed
from training.networks.widen import is_wider, widened


def net(name: str, **changes: Any) -> DescriptorNet:
    torch.manual_seed(0)
    return build_network(NetworkOptions(name=name, **changes), 32).eval()


def patches(count: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 8, 8, generator=generator) * 200
    return torch.nn.functional.interpolate(coarse, size=32, mode="bilinear") + 20


def convolutions(network: torch.nn.Module) -> list[torch.nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]


@pytest.mark.parametrize(
    ("name", "changes", "parameters", "mmac"),
    [
        ("l2net", {}, 1_334_560, 39.09),
        ("l2net", {"dim": 256, "head": "binary"}, 2_383_136, 40.14),
        ("l2net", {"width": 0.75}, None, 22.2),
        ("l2net", {"width": 0.5}, None, 10.1),
        ("hynet", {}, 1_336_355, 39.09),
        ("residual", {"head": "linear"}, 1_173_952, 226.8),
        ("patchify48", {}, 435_456, 3.10),
        ("patchify64", {}, 635_904, 7.67),
        ("compact40", {}, 377_040, 3.56),
        ("compact48", {}, 462_736, 4.92),
        ("compact64", {}, 649_304, 8.64),
        ("surround40", {}, 213_200, 1.78),
        ("surround40-short", {}, 198_800, 1.32),
        ("surround32-short", {}, 154_512, 0.92),
        ("slim", {}, 191_120, 4.89),
    ],
)
def test_costs(name: str, changes: dict[str, Any], parameters: int | None, mmac: float) -> None:
    built = net(name, **changes)
    if parameters is not None:
        assert parameter_count(built) == parameters
    digits = 1 if mmac in (22.2, 10.1, 226.8) else 2
    assert round(mac_count(built) / 1e6, digits) == mmac


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", ["unit", "binary", "linear"])
def test_heads(name: str, head: str) -> None:
    built = net(name, head=head, width=0.25, dim=16)
    out = built(patches())
    assert out.shape == (6, 16)
    features = built.features(patches())
    if head == "unit":
        torch.testing.assert_close(out.norm(dim=1), torch.ones(6))
        torch.testing.assert_close(out, features / features.norm(dim=1, keepdim=True))
    else:
        torch.testing.assert_close(out, features.tanh() if head == "binary" else features)


@torch.no_grad()
def test_gain_and_offset_invariance() -> None:
    x = patches()
    hardnet, frn = net("l2net"), net("hynet")
    torch.testing.assert_close(hardnet(3 * x), hardnet(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(hardnet(x + 10), hardnet(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(frn(3 * x), frn(x), atol=1e-4, rtol=0)
    assert float((frn(x + 10) - frn(x)).abs().max()) > 1e-3


def test_standardise_is_detached_and_exact_on_constant_patches() -> None:
    x = patches().requires_grad_()
    out = Standardise()(x)
    torch.testing.assert_close(out.mean((1, 2, 3)), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std((1, 2, 3)), torch.ones(6))
    # Mean and deviation are constants for the gradient: each pixel sees its own scale alone.
    out.sum().backward()
    scale = 1 / x.detach().std((1, 2, 3), keepdim=True)
    torch.testing.assert_close(x.grad, scale.expand_as(x))
    assert Standardise()(torch.full((1, 1, 32, 32), 200.0)).abs().max() == 0


def test_frn_and_tlu() -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frn = FilterResponseNorm(3).double()
    expected = x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(frn(x), expected)
    assert not any("eps" in name for name, _ in frn.named_parameters())
    assert torch.autograd.gradcheck(frn, (x.clone().requires_grad_(),))
    tlu = ThresholdedLinear(3).double()
    torch.testing.assert_close(tlu(x), x.clamp_min(-1))
    tlu(x).sum().backward()
    assert tlu.tau.grad is not None
    assert float(tlu.tau.grad.sum()) == float((x <= -1).sum())


def test_batch_norm_has_no_parameters_and_torchs_behaviour() -> None:
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    ours, reference = BatchNorm(3), torch.nn.BatchNorm2d(3, affine=False)
    torch.testing.assert_close(ours(x), reference(x))
    assert list(ours.parameters()) == []


def test_orthogonal_initialisation() -> None:
    conv = next(m for m in net("l2net").modules() if isinstance(m, torch.nn.Conv2d))
    flat = conv.weight.flatten(1)
    torch.testing.assert_close(flat.T @ flat, 0.36 * torch.eye(9), atol=1e-5, rtol=0)


def test_residual_keeps_sizes_with_even_kernels() -> None:
    built = net("residual", head="linear", width=0.25)
    x = torch.zeros(1, 8, 32, 32)
    assert built.get_submodule("trunk.3")(x).shape == (1, 8, 32, 32)
    assert built.get_submodule("trunk.4.0").padding == (2, 3, 2, 3)


@pytest.mark.parametrize("size", [24, 30, 33, 34, 36, 48])
@pytest.mark.parametrize("name", ["compact40", "patchify48", "slim", "l2net", "hynet"])
def test_any_size_of_patch_gives_one_row_each(name: str, size: int) -> None:
    built = build_network(NetworkOptions(name=name, width=0.25, dim=16), size).eval()
    assert built(torch.zeros(3, 1, size, size)).shape == (3, 16)
    with pytest.raises(ValueError, match="do not cover"):
        built(torch.zeros(3, 1, size + 8, size + 8))


def test_a_surround_needs_a_middle_half() -> None:
    with pytest.raises(RecipeError, match="34"):
        build_network(NetworkOptions(name="surround40"), 34)


def test_a_surround_is_a_second_patch_for_the_same_layers() -> None:
    torch.manual_seed(0)
    plain = build_network(NetworkOptions(name="compact40"), 32)
    both = build_network(NetworkOptions(name="surround40"), 64).eval()
    large = torch.randint(0, 256, (5, 1, 64, 64), dtype=torch.uint8)
    middle, whole = large[:, :, 16:48, 16:48], torch.nn.functional.avg_pool2d(large.float(), 2)
    plain.train()(middle)
    plain.eval()
    body = {k: v for k, v in plain.state_dict().items() if not k.startswith("trunk.17.")}
    both.load_state_dict(body, strict=False)
    ones, last = plain.get_parameter("trunk.17.weight"), both.get_parameter("trunk.17.weight")
    for kept, part in ((slice(0, 40), middle), (slice(40, 80), whole)):
        with torch.no_grad():
            last.zero_()
            last[:, kept] = ones
            torch.testing.assert_close(both(large), plain(part), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["compact40", "l2net", "surround40"])
@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_a_widened_network_gives_what_the_narrow_one_gave(name: str, factor: float) -> None:
    torch.manual_seed(0)
    narrow, wide = net(name, width=0.25), net(name, width=0.25 * factor)
    patches = torch.randint(0, 256, (64, 1, 32, 32), dtype=torch.uint8)
    narrow.train()(patches)  # statistics that are not 0 and 1
    given = dict(sorted(narrow.state_dict().items()))  # as a file has them
    assert is_wider(wide.state_dict(), given)
    assert not is_wider(given, wide.state_dict())
    assert not is_wider(given, given)
    generator = torch.Generator().manual_seed(0)
    wide.load_state_dict(widened(wide.state_dict(), given, generator, noise=0.0))
    with torch.no_grad():
        expected, found = narrow.eval()(patches), wide.eval()(patches)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    noisy = widened(wide.state_dict(), given, generator)
    first = noisy["trunk.1.weight"]
    assert not torch.equal(first[0], first[given["trunk.1.weight"].shape[0]])


@pytest.mark.parametrize(
    ("name", "head"),
    [("compact40", "unit"), ("compact40", "linear"), ("l2net", "unit"), ("slim", "unit")],
)
def test_a_narrowed_network_loses_only_what_was_not_read(name: str, head: str) -> None:
    wide, narrow = net(name, width=0.5, head=head), net(name, width=0.25, head=head)
    patches = torch.randint(0, 256, (64, 1, 32, 32), dtype=torch.uint8)
    wide.train()(patches)  # statistics that are not 0 and 1
    with torch.no_grad():
        for conv, reader in pairwise(convolutions(wide)):
            # Half of the channels of every layer, here and there, are not read at all.
            unread = torch.randperm(conv.out_channels)[: conv.out_channels // 2]
            reader.weight[:, unread] = 0
    given = dict(sorted(wide.state_dict().items()))  # as a file has them
    assert is_narrower(narrow.state_dict(), given)
    assert not is_narrower(wide.state_dict(), narrow.state_dict())
    assert not is_narrower(wide.state_dict(), given)
    narrow.load_state_dict(narrowed(narrow.state_dict(), given))
    with torch.no_grad():
        expected, found = wide.eval()(patches), narrow.eval()(patches)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_channel_that_only_the_surround_reads_is_kept() -> None:
    wide, narrow = net("surround40", width=0.5), net("surround40", width=0.25)
    *_, conv, last = convolutions(wide)
    middle_only, surround_only = [3, 7, 11, 12, 15], [0, 4, 9, 10, 18]
    with torch.no_grad():
        # All are read a little, with signs that cancel; ten much more, by one of the two maps.
        last.weight.copy_(last.weight.sign() * 1e-3)
        last.weight[:, middle_only] *= 100
        last.weight[:, [conv.out_channels + c for c in surround_only]] *= 100
    start = narrowed(narrow.state_dict(), wide.state_dict())
    kept = sorted(middle_only + surround_only)
    both = [*kept, *(conv.out_channels + c for c in kept)]
    key = f"trunk.{list(wide.trunk).index(last)}.weight"
    assert torch.equal(start[key], last.weight[:, both])


@pytest.mark.parametrize(
    ("name", "other"), [("surround40", "compact40"), ("compact40", "surround40")]
)
def test_a_network_that_reads_other_maps_is_not_narrowed(name: str, other: str) -> None:
    wide = build_network(NetworkOptions(name=name), 64 if name == "surround40" else 32).state_dict()
    side = 64 if other == "surround40" else 32
    narrow = build_network(NetworkOptions(name=other, width=0.5), side).state_dict()
    assert narrow.keys() == wide.keys()
    assert not is_narrower(narrow, wide)


@pytest.mark.parametrize("name", ["hynet", "residual"])
def test_networks_whose_channels_mean_several_things_are_not_narrowed(name: str) -> None:
    wide, narrow = net(name, width=0.5).state_dict(), net(name, width=0.25).state_dict()
    assert not is_narrower(narrow, wide)


@pytest.mark.parametrize("width", [0.25, 1.0])
def test_the_residual_network_starts_near_the_targets_of_its_losses(width: float) -> None:
    torch.manual_seed(0)
    options = NetworkOptions(name="residual", head="linear", width=width)
    net = build_network(options, 32).eval()
    smooth = torch.nn.functional.interpolate(torch.rand(16, 1, 4, 4), size=32, mode="bilinear")
    with torch.no_grad():
        rows = net(255 * smooth)
    # Negative pairs shall be 3 apart; far more makes the first gradients explode.
    assert 1.0 < torch.pdist(rows).mean() < 5.0
