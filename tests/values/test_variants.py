"""What `variant` means: one test per row of the table of variants, over all columns and methods."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS, Algorithm

FAMILY = ["at", "uat", "mat", "ldat"]
KEPT = ["uat", "mat", "ldat"]
VARIANTS = ["standard", "paper", "released"]
OWN = {"mat": {"count": 3}, "ldat": {"rank": 2}}
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).reshape(3, 1, 1)
# A radius so large that projection does not interfere with the step.
UNBOUND = {"epsilon": 1e6, "start": "zero"}


def linear_network(channels: int = 3) -> nn.Sequential:
    """Steep enough for losses on both sides of 2."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16 * channels, 3))
    network[1].weight.data *= 20
    return network


def two_domains(seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Batches of five and two images well inside [0, 1], each with samples of loss above and below 2."""
    random = torch.Generator().manual_seed(seed)
    network = linear_network()
    batches = []
    for count in (5, 2):
        x = 0.3 + 0.4 * torch.rand(count, 3, 4, 4, generator=random)
        logits = network(x)
        y = logits.argmax(1)
        y[0] = logits[0].argmin()
        losses = F.cross_entropy(logits, y, reduction="none")
        assert losses.min() < 1.9
        assert losses.max() > 2.1
        batches.append((x, y))
    return batches


def build(name: str, variant: str, **hparams) -> Algorithm:
    settings = {"lr": 0.01, "epsilon": 0.1, "step_size": 0.02, **OWN.get(name, {}), **hparams}
    generator = torch.Generator().manual_seed(2)
    return ALGORITHMS[name](
        linear_network(), num_domains=2, input_shape=(3, 4, 4), generator=generator, variant=variant, **settings
    )


def network_inputs(algorithm: Algorithm) -> list[Tensor]:
    """Return a list that collects the inputs of the network."""
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    return seen


def state(algorithm: Algorithm) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in algorithm.perturbation.parameters()]


def normalized(x: Tensor) -> Tensor:
    return (x - MEAN) / STD


def zero_deltas(algorithm: Algorithm) -> None:
    with torch.no_grad():
        algorithm.perturbation.deltas.zero_()


# Ascent direction.


@pytest.mark.parametrize("variant", VARIANTS)
def test_direction_of_uat(variant: str) -> None:
    algorithm = build("uat", variant, epsilon=1e6, reduction="mean", loss_cap=None)
    zero_deltas(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    for e, (x, y) in enumerate(batches):
        delta = torch.zeros(3, 4, 4, requires_grad=True)
        image = x + delta * STD if variant == "released" else x + delta
        gradient = torch.autograd.grad(F.cross_entropy(linear_network()(image), y), delta)[0]
        if variant == "paper" and e == 1:
            continue  # The network has already moved; the order has its own test.
        direction = gradient if variant == "paper" else gradient / gradient.norm()
        torch.testing.assert_close(algorithm.perturbation.deltas[e].detach(), 0.02 * direction)


@pytest.mark.parametrize(
    ("variant", "scaled_to_one"), [("standard", "perturbation"), ("paper", "nothing"), ("released", "stack")]
)
def test_direction_of_mat(variant: str, scaled_to_one: str) -> None:
    algorithm = build("mat", variant, epsilon=1e6, weights="domain", loss_cap=None)
    zero_deltas(algorithm)
    (logits,) = state(algorithm)[1:]
    x, y = two_domains()[0]
    algorithm.update(two_domains())
    step = algorithm.perturbation.deltas[0].detach() / 0.02

    offset = torch.zeros(3, 4, 4, requires_grad=True)
    gradient = torch.autograd.grad(F.cross_entropy(linear_network()(x + offset), y), offset)[0]
    alpha = logits[0].exp() / logits[0].exp().sum()
    of_each = torch.stack([weight * gradient for weight in alpha])
    if scaled_to_one == "perturbation":
        of_each = torch.stack([each / each.norm() for each in of_each])
    elif scaled_to_one == "stack":
        of_each = of_each / of_each.norm()
    torch.testing.assert_close(step, of_each)


@pytest.mark.parametrize(("variant", "length"), [("standard", 0.5), ("paper", None), ("released", 0.5 * 0.1)])
def test_direction_of_ldat(variant: str, length: float | None) -> None:
    algorithm = build("ldat", variant, step_size=0.5, loss_cap=None, solver="factors")
    left, right = (factor[0].requires_grad_() for factor in state(algorithm))
    x, y = two_domains()[0]
    algorithm.update(two_domains())
    product = left @ right
    loss = F.cross_entropy(linear_network()((x + 0.1 * product / product.norm()).clamp(0, 1)), y)
    gradients = torch.autograd.grad(loss, (left, right))
    for before, after, gradient in zip((left, right), state(algorithm), gradients, strict=True):
        expected = 0.5 * gradient if length is None else length * gradient / gradient.norm()
        torch.testing.assert_close(after[0] - before.detach(), expected)


def test_released_ldat_step_is_step_size_times_step_scale() -> None:
    algorithm = build("ldat", "released", step_size=0.5, step_scale=0.3)
    before = state(algorithm)
    algorithm.update(two_domains())
    for old, new in zip(before, state(algorithm), strict=True):
        torch.testing.assert_close((new - old).flatten(1).norm(dim=1), torch.full((2,), 0.15))


@pytest.mark.parametrize("variant", VARIANTS)
def test_direction_of_at(variant: str) -> None:
    algorithm = build("at", variant, **UNBOUND, steps=1, step_size=1e-3)
    seen = network_inputs(algorithm)
    x, y = two_domains()[0]
    algorithm.update(two_domains())
    trained_on = seen[1][:5]
    point = (normalized(x) if variant == "released" else x).requires_grad_()
    image = point * STD + MEAN if variant == "released" else point
    gradient = torch.autograd.grad(F.cross_entropy(linear_network()(image), y), point)[0]
    if variant == "standard":
        gradient = torch.stack([each / each.norm() for each in gradient])
    elif variant == "released":
        gradient = gradient / gradient.norm() * STD
    torch.testing.assert_close(trained_on, x.detach() + 1e-3 * gradient, rtol=0, atol=1e-12)


# Solver of LDAT, step size and warm-up.


@pytest.mark.parametrize(
    ("variant", "solver"), [("standard", "projected"), ("paper", "factors"), ("released", "factors")]
)
def test_solver_of_ldat(variant: str, solver: str) -> None:
    algorithm = build("ldat", variant)
    names = {name for name, _ in algorithm.perturbation.named_parameters()}
    assert names == ({"deltas"} if solver == "projected" else {"left", "right"})


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(
    ("variant", "step_size", "warmup_steps"), [("standard", None, 10), ("paper", 0.1, 0), ("released", 0.1, 0)]
)
def test_step_size_and_warmup(name: str, variant: str, step_size: float | None, warmup_steps: int) -> None:
    algorithm = ALGORITHMS[name](
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        num_steps=20,
        variant=variant,
        epsilon=0.7,
        **OWN.get(name, {}),
    )
    assert algorithm.hparams.step_size == step_size
    assert algorithm.perturbation.warmup_steps == warmup_steps
    # In the released code LDAT's step is a tenth of it.
    scale = 0.1 if (name, variant) == ("ldat", "released") else 1.0
    expected = 0.7 / 10 if step_size is None else step_size * scale
    assert algorithm.perturbation.step_size == pytest.approx(expected)


# Order.


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(("variant", "steps"), [("standard", 1), ("paper", 2), ("released", 1)])
def test_network_steps_once_or_once_per_domain(name: str, variant: str, steps: int) -> None:
    algorithm = build(name, variant)
    seen = network_inputs(algorithm)
    algorithm.update(two_domains())
    for moments in algorithm.optimizer.state.values():
        assert moments["step"] == steps
    assert {len(x) for x in seen} == ({5, 2} if variant == "paper" else {7})


@pytest.mark.parametrize(("variant", "sees_the_step"), [("standard", False), ("paper", True), ("released", False)])
def test_sequential_order_attacks_the_updated_network(variant: str, sees_the_step: bool) -> None:
    algorithm = build("uat", variant, epsilon=1e6, lr=0.1, ascent="gradient", reduction="mean", loss_cap=None)
    zero_deltas(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    network = linear_network()
    if sees_the_step:
        x, y = batches[0]
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        F.cross_entropy(network((x + algorithm.perturbation.deltas[0].detach()).clamp(0, 1)), y).backward()
        optimizer.step()
    x, y = batches[1]
    delta = torch.zeros(3, 4, 4, requires_grad=True)
    image = x + delta * STD if variant == "released" else x + delta
    gradient = torch.autograd.grad(F.cross_entropy(network(image), y), delta)[0]
    torch.testing.assert_close(algorithm.perturbation.deltas[1].detach(), 0.02 * gradient)


# Model loss.


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("variant", VARIANTS)
def test_model_loss(name: str, variant: str) -> None:
    """The network's remaining gradient is that of the variant's loss on its last batch."""
    algorithm = build(name, variant, lr=0.0)
    seen = network_inputs(algorithm)
    (_, first), (_, second) = two_domains()
    algorithm.update(two_domains())
    network, x_adv = linear_network(), seen[-1]
    if variant == "standard":
        loss = F.cross_entropy(network(x_adv), torch.cat([first, second]), reduction="sum") / 7
    elif variant == "paper":
        loss = F.cross_entropy(network(x_adv), second, reduction="sum") / 2
    else:
        each = F.cross_entropy(network(x_adv), torch.cat([first, second]), reduction="none")
        loss = each[:5].sum() / 5 + each[5:].sum() / 2
    loss.backward()
    for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


# Inner loss.


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FAMILY)
def test_inner_loss(name: str, variant: str) -> None:
    """With raw steps from zero, the step of the first domain is the gradient of the inner loss."""
    start = {"start": "zero", "steps": 1} if name == "at" else {}
    weights = {"weights": "domain"} if name == "mat" else {}
    factors = {"step_scale": 1.0, "solver": "factors"} if name == "ldat" else {}
    wide = {"epsilon": 1e6, "step_size": 1e-3, "ascent": "gradient"}
    algorithm = build(name, variant, **wide, **start, **weights, **factors)
    if name in ("uat", "mat"):
        zero_deltas(algorithm)
    if name == "ldat":
        with torch.no_grad():
            algorithm.perturbation.left.zero_()
    before = state(algorithm)
    seen = network_inputs(algorithm)
    x, y = two_domains()[0]
    algorithm.update(two_domains())

    in_normalized = variant == "released" and name in ("at", "uat")
    offset = torch.zeros(5, 3, 4, 4, requires_grad=True)
    losses = F.cross_entropy(linear_network()(x + offset * (STD if in_normalized else 1)), y, reduction="none")
    if variant == "released" and name != "at":
        losses = torch.stack([loss if loss < 2 else torch.tensor(2.0) for loss in losses])
    inner = losses.sum() if variant == "released" and name == "uat" else losses.sum() / 5
    (of_each,) = torch.autograd.grad(inner, offset)
    shared = of_each.sum(0)
    if name == "at":
        moved = (seen[1][:5] - x) / (STD if in_normalized else 1)
        torch.testing.assert_close(moved, 1e-3 * of_each, rtol=1e-6, atol=1e-12)
    elif name == "uat":
        torch.testing.assert_close(algorithm.perturbation.deltas[0].detach(), 1e-3 * shared)
    elif name == "mat":
        alpha = before[1][0].exp() / before[1][0].exp().sum()
        expected = torch.stack([1e-3 * weight * shared for weight in alpha])
        torch.testing.assert_close(algorithm.perturbation.deltas[0].detach(), expected)
    else:
        # d loss / d A = (d loss / d AB) B^T, per channel.
        expected = torch.stack([1e-3 * shared[c] @ before[1][0, c].T for c in range(3)])
        torch.testing.assert_close(algorithm.perturbation.left[0].detach(), expected)


# MAT weights.


def test_standard_mat_assigns_one_perturbation_to_each_sample() -> None:
    """With still perturbations, each sample is trained on the one with the largest gain to first order."""
    algorithm = build("mat", "standard", lr=0.0, step_size=0.0)
    deltas, seen = state(algorithm)[0], network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    chosen, row = set(), 0
    for e, (x, y) in enumerate(batches):
        for i in range(len(x)):
            # The gradient is taken at the mean of the domain's perturbations.
            point = (x[i] + deltas[e].mean(0)).requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(linear_network()(point[None]), y[i : i + 1]), point)
            gains = [(delta * gradient).sum().item() for delta in deltas[e]]
            best = gains.index(max(gains))
            torch.testing.assert_close(seen[1][row], x[i] + deltas[e, best])
            chosen.add((e, best))
            row += 1
    assert len(chosen) > 2


@pytest.mark.parametrize(("variant", "unit"), [("paper", "domain"), ("released", "sample")])
def test_weights_of_mat(variant: str, unit: str) -> None:
    algorithm = build("mat", variant, lr=0.0, step_size=0.0, weight_step_size=0.0, start="projected")
    seen = network_inputs(algorithm)
    x = two_domains()[0][0]
    offsets = []
    for _ in range(2):
        algorithm.update(two_domains())
        first_domain = seen[-2] if variant != "paper" else seen[-4]
        offsets.append(first_domain[:5] - x)
    spread = max((a - b).norm().item() for a in offsets[0] for b in offsets[0])
    change = (offsets[0] - offsets[1]).norm().item()
    if unit == "domain":
        # One mix for all samples, kept for the next update.
        assert spread < 1e-12
        assert change < 1e-12
    else:
        # One mix per sample, drawn again in the next update.
        pairs = [(offsets[0][i] - offsets[0][j]).norm() for i in range(5) for j in range(i)]
        assert min(pairs) > 1e-3
        assert ((offsets[0] - offsets[1]).flatten(1).norm(dim=1) > 1e-3).all()
    # Both are convex: least squares recovers the coefficients from the offset.
    stack = algorithm.perturbation.deltas[0].detach().flatten(1).T
    alpha = torch.linalg.lstsq(stack, offsets[0].flatten(1).T).solution
    torch.testing.assert_close(stack @ alpha, offsets[0].flatten(1).T)
    torch.testing.assert_close(alpha.sum(0), torch.ones(5))
    assert (alpha > 0).all()


def test_released_weights_move_by_the_raw_gradient_of_the_domain_mean() -> None:
    still = {"lr": 0.0, "step_size": 0.0, "start": "projected"}
    algorithm = build("mat", "released", **still, weight_step_size=2.0, loss_cap=None)
    seen = network_inputs(algorithm)
    algorithm.update(two_domains())
    before, after = seen
    row = 0
    for e, (x, y) in enumerate(two_domains()):
        stack = algorithm.perturbation.deltas[e].detach().flatten(1).T
        for i in range(len(x)):
            # The mix determines the logits up to a constant, which does not change the softmax.
            mix = torch.linalg.lstsq(stack, (before[row] - x[i]).reshape(-1, 1)).solution[:, 0]
            logits = mix.log().requires_grad_()
            image = x[i] + (stack @ logits.softmax(0)).reshape(3, 4, 4)
            (gradient,) = torch.autograd.grad(F.cross_entropy(linear_network()(image[None]), y[i : i + 1]), logits)
            moved = stack @ (logits.detach() + 2.0 * gradient / len(x)).softmax(0)
            torch.testing.assert_close(after[row] - x[i], moved.reshape(3, 4, 4))
            row += 1


# Start of delta.


@pytest.mark.parametrize("name", ["uat", "mat"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_start_of_delta(name: str, variant: str) -> None:
    shape = (3, 32, 32)
    algorithm = ALGORITHMS[name](
        nn.Sequential(nn.Flatten(), nn.Linear(3, 1)),
        num_domains=40,
        input_shape=shape,
        generator=torch.Generator().manual_seed(3),
        variant=variant,
        epsilon=0.3,
        **OWN.get(name, {}),
    )
    deltas = algorithm.perturbation.deltas.detach().reshape(-1, 3 * 32 * 32)
    if variant == "released":
        # N(0, 1) * 2 epsilon - epsilon, far outside the ball.
        assert deltas.mean().item() == pytest.approx(-0.3, abs=0.01)
        assert deltas.std().item() == pytest.approx(0.6, rel=0.02)
        kurtosis = ((deltas - deltas.mean()) ** 4).mean() / deltas.var() ** 2
        assert kurtosis.item() == pytest.approx(3, abs=0.1)
        assert (deltas.norm(dim=1) > 10 * 0.3).all()
    else:
        # A Gaussian draw projected onto the sphere: its entries are nearly Gaussian with variance epsilon^2 / n.
        torch.testing.assert_close(deltas.norm(dim=1), torch.full((len(deltas),), 0.3))
        assert deltas.mean().abs().item() < 1e-4
        kurtosis = (deltas**4).mean() / (deltas**2).mean() ** 2
        assert kurtosis.item() == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["uat", "mat"])
def test_first_gradient_is_taken_at_the_unmodified_start(name: str, variant: str) -> None:
    algorithm = build(name, variant, epsilon=0.02)
    start = state(algorithm)[0]
    seen = network_inputs(algorithm)
    x = two_domains()[0][0]
    algorithm.update(two_domains())
    offset = (seen[0][:5] - x) / (STD if variant == "released" and name == "uat" else 1)
    if variant == "released":
        # sqrt(48) * 2 epsilon or more: outside the ball. A mix of three is only slightly shorter.
        assert (offset.flatten(1).norm(dim=1) > 3 * 0.02).all()
        if name == "uat":
            torch.testing.assert_close(offset, start[0].expand(5, 3, 4, 4))
    else:
        assert (offset.flatten(1).norm(dim=1) <= 0.02 + 1e-12).all()
    # From the first step on, every perturbation is in its ball.
    flat = algorithm.perturbation.deltas.detach().reshape(-1, 48)
    assert (flat.norm(dim=1) <= 0.02 + 1e-12).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_ldat_factors_start_standard_normal(variant: str) -> None:
    algorithm = ALGORITHMS["ldat"](
        nn.Sequential(nn.Flatten(), nn.Linear(3, 1)),
        num_domains=40,
        input_shape=(3, 32, 32),
        generator=torch.Generator().manual_seed(3),
        variant=variant,
        epsilon=0.3,
        rank=8,
        solver="factors",
    )
    for factor, shape in zip(state(algorithm), [(40, 3, 32, 8), (40, 3, 8, 32)], strict=True):
        assert factor.shape == shape
        assert factor.mean().abs().item() < 0.03
        assert factor.std().item() == pytest.approx(1, rel=0.03)
    torch.testing.assert_close(algorithm.perturbation.delta().detach().flatten(1).norm(dim=1), torch.full((40,), 0.3))


# LDAT gradient.


@pytest.mark.parametrize("variant", VARIANTS)
def test_ldat_gradient_goes_through_the_scaling(variant: str) -> None:
    """Outside the ball the length of a factor has no effect, so its gradient is orthogonal to the factor."""
    algorithm = build("ldat", variant, ascent="gradient", step_size=0.5, solver="factors")
    before = state(algorithm)
    algorithm.update(two_domains())
    for old, new in zip(before, state(algorithm), strict=True):
        for e in range(2):
            move = new[e] - old[e]
            assert move.norm() > 1e-3
            assert abs((move * old[e]).sum().item()) < 1e-9 * (move.norm() * old[e].norm()).item()


@pytest.mark.parametrize("variant", VARIANTS)
def test_ldat_factors_are_never_rescaled(variant: str) -> None:
    algorithm = build("ldat", variant, solver="factors")
    lengths = [factor.flatten(1).norm(dim=1) for factor in state(algorithm)]
    for seed in range(3):
        algorithm.update(two_domains(seed + 1))
    for factor, length in zip(state(algorithm), lengths, strict=True):
        assert (factor.flatten(1).norm(dim=1) - length).abs().max() < 0.1 * length.min()
    assert (algorithm.perturbation.delta().detach().flatten(1).norm(dim=1) < 0.1 + 1e-12).all()


# Space.


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KEPT)
def test_radius_of_a_kept_perturbation(name: str, variant: str) -> None:
    algorithm = build(name, variant, epsilon=0.1, step_size=1000.0)
    seen = network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    x_adv = seen[-1] if variant == "paper" else seen[-1][5:]
    offset = x_adv - batches[1][0]
    if name == "uat" and variant == "released":
        assert (offset.flatten(1).norm(dim=1) < 0.024).all()
        offset = offset / STD
    # LDAT's product lies on the sphere; a mix of points of the ball lies inside it.
    norms = offset.flatten(1).norm(dim=1)
    assert (norms <= 0.1 + 1e-12).all()
    assert (norms > 0.09).all() if name != "mat" else (norms > 0.01).all()
    if name == "mat":
        sizes = algorithm.perturbation.deltas.detach().flatten(2).norm(dim=2)
        torch.testing.assert_close(sizes, torch.full((2, 3), 0.1))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KEPT)
def test_images_at_the_bounds_are_clipped_to_them(name: str, variant: str) -> None:
    algorithm = build(name, variant, epsilon=5.0, step_size=1000.0)
    seen = network_inputs(algorithm)
    white, black = torch.ones(3, 3, 4, 4), torch.zeros(2, 3, 4, 4)
    algorithm.update([(white, torch.tensor([0, 1, 2])), (black, torch.tensor([0, 1]))])
    for x in seen:
        # The round trip through normalized space costs a rounding error.
        assert x.min() >= -1e-12
        assert x.max() <= 1 + 1e-12
        assert (x.flatten(1).std(dim=1) > 1e-3).all()
    if name == "uat":
        # The input was clipped; the parameters were only projected.
        norms = algorithm.perturbation.deltas.detach().flatten(1).norm(dim=1)
        torch.testing.assert_close(norms, torch.full((2,), 5.0))


@pytest.mark.parametrize("variant", ["standard", "paper"])
def test_at_attacks_each_sample_in_its_own_ball_of_pixels(variant: str) -> None:
    algorithm = build("at", variant, epsilon=0.1, step_size=1000.0)
    seen = network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    # One step: one pass for its gradient, one to train, from a clipped start inside the ball.
    assert len(seen) == (4 if variant == "paper" else 2)
    x = batches[1][0]
    started, trained = (seen[2], seen[3]) if variant == "paper" else (seen[0][5:], seen[1][5:])
    assert ((started - x).flatten(1).norm(dim=1) <= 0.1 + 1e-12).all()
    assert ((started - x).flatten(1).norm(dim=1) > 0.05).all()
    torch.testing.assert_close((trained - x).flatten(1).norm(dim=1), torch.full((2,), 0.1))


@pytest.mark.parametrize("variant", ["standard", "paper"])
def test_at_clips_in_every_forward(variant: str) -> None:
    algorithm = build("at", variant, epsilon=5.0, steps=3)
    seen = network_inputs(algorithm)
    algorithm.update([(torch.ones(3, 3, 4, 4), torch.tensor([0, 1, 2])), (torch.zeros(1, 3, 4, 4), torch.tensor([0]))])
    for x in seen:
        assert x.min() >= 0
        assert x.max() <= 1


def test_released_at_takes_ten_steps() -> None:
    algorithm = build("at", "released")
    seen = network_inputs(algorithm)
    algorithm.update(two_domains())
    assert len(seen) == 10 + 1


def test_released_at_starts_uniform_outside_the_ball() -> None:
    algorithm = build("at", "released", epsilon=0.3)
    seen = network_inputs(algorithm)
    random = torch.Generator().manual_seed(5)
    batches = [
        (0.5 + 0.01 * torch.rand(400, 3, 4, 4, generator=random), torch.randint(3, (400,), generator=random))
    ] * 2
    algorithm.update(batches)
    start = normalized(seen[0]) - normalized(torch.cat([x for x, _ in batches]))
    assert start.abs().max().item() == pytest.approx(0.3, rel=1e-3)
    deciles = torch.quantile(start.flatten(), torch.linspace(0, 1, 11))
    torch.testing.assert_close(deciles, torch.linspace(-0.3, 0.3, 11), rtol=0, atol=0.01)
    # Each image alone is already outside, and so is each domain's batch.
    assert (start.flatten(1).norm(dim=1) > 0.3).all()


def test_released_at_has_one_ball_per_domain_in_normalized_space() -> None:
    algorithm = build("at", "released", epsilon=0.3, step_size=1000.0)
    seen = network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    offset = normalized(seen[-1]) - normalized(torch.cat([x for x, _ in batches]))
    for rows in offset.split((5, 2)):
        assert rows.norm().item() == pytest.approx(0.3, rel=1e-9)
        assert (rows.flatten(1).norm(dim=1) < 0.3).all()


def test_released_at_clips_from_the_second_forward_on() -> None:
    algorithm = build("at", "released", epsilon=3.0)
    seen = network_inputs(algorithm)
    algorithm.update([(torch.ones(3, 3, 4, 4), torch.tensor([0, 1, 2])), (torch.zeros(1, 3, 4, 4), torch.tensor([0]))])
    assert seen[0].max() > 1.1
    assert seen[0].min() < -0.1
    for x in seen[1:]:
        assert x.min() >= -1e-12
        assert x.max() <= 1 + 1e-12


@pytest.mark.parametrize("name", ["at", "uat"])
def test_released_at_and_uat_need_three_channels(name: str) -> None:
    settings = {"num_domains": 2, "input_shape": (1, 4, 4), "variant": "released"}
    with pytest.raises(ValueError, match="three channels"):
        ALGORITHMS[name](linear_network(1), **settings)


@pytest.mark.parametrize("name", ["mat", "ldat"])
def test_released_mat_and_ldat_accept_any_channels(name: str) -> None:
    algorithm = ALGORITHMS[name](
        linear_network(1), num_domains=2, input_shape=(1, 4, 4), variant="released", lr=0.01, **OWN[name]
    )
    random = torch.Generator().manual_seed(6)
    x, y = torch.rand(4, 1, 4, 4, generator=random), torch.tensor([0, 1, 2, 0])
    before = copy.deepcopy(algorithm.network.state_dict())
    algorithm.update([(x, y), (x, y)])
    assert not torch.equal(before["1.weight"], algorithm.network[1].weight)


# Explicit settings override the variant.


@pytest.mark.parametrize("name", FAMILY)
def test_paper_with_joint_order_steps_once(name: str) -> None:
    algorithm = build(name, "paper", order="joint")
    algorithm.update(two_domains())
    assert {moments["step"].item() for moments in algorithm.optimizer.state.values()} == {1.0}


@pytest.mark.parametrize("name", FAMILY)
def test_released_with_mean_objective_weighs_samples_equally(name: str) -> None:
    algorithm = build(name, "released", objective="mean", lr=0.0)
    seen = network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    network = linear_network()
    F.cross_entropy(network(seen[-1]), torch.cat([y for _, y in batches])).backward()
    torch.testing.assert_close(algorithm.network[1].weight.grad, network[1].weight.grad)


def test_released_at_in_pixels_with_two_steps_from_zero() -> None:
    algorithm = build("at", "released", space="pixels", steps=2, start="zero", over="sample", step_size=1000.0)
    seen = network_inputs(algorithm)
    batches = two_domains()
    algorithm.update(batches)
    assert len(seen) == 3
    x = torch.cat([x for x, _ in batches])
    torch.testing.assert_close(seen[0], x, rtol=0, atol=0)
    torch.testing.assert_close((seen[-1] - x).flatten(1).norm(dim=1), torch.full((7,), 0.1))
