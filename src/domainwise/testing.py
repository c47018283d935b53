"""Checks of what every method guarantees, for tests of your own: `check_algorithm(MyMethod)` in one line.

The tests of the built-in methods call the same functions.
"""

import copy
import gc
import io
import math
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from domainwise.algorithms import Algorithm
from domainwise.fake_device import DEVICE, DeviceMixError, FakeDevice
from domainwise.networks import Network

__all__ = [
    "check_algorithm",
    "check_batch_is_unchanged",
    "check_device",
    "check_domain_sizes",
    "check_memory",
    "check_predict",
    "check_reproducible",
    "check_resume",
    "check_steps",
    "check_update",
]

SHAPE = (3, 12, 12)
NUM_CLASSES = 3
Batches = list[tuple[Tensor, Tensor]]


def check_algorithm(method: type[Algorithm], **hparams: Any) -> None:
    """Raise an AssertionError that says what is wrong unless the method keeps the contract of all methods.

    An update moves the network and returns finite floats, also if a domain has few samples or none; the saved state is
    complete, so that training resumes to the bit; the same seed gives the same weights; prediction and update change
    nothing else; every optimizer step goes through `step_`; memory does not grow; no tensor stays on the CPU if the
    network is on a GPU, which is checked without one. Takes about a second.

    Args:
        hparams: hyperparameters, best such that schedules and the like take effect within a few updates.
    """
    check_update(method, **hparams)
    check_domain_sizes(method, **hparams)
    for saved_after in (2, 4):
        check_resume(method, saved_after, **hparams)
    check_reproducible(method, **hparams)
    check_predict(method, **hparams)
    check_batch_is_unchanged(method, **hparams)
    check_steps(method, **hparams)
    check_device(method, **hparams)
    check_memory(method, **hparams)


def check_update(method: type[Algorithm], *, may_rest: bool = False, **hparams: Any) -> None:
    """An update moves the network, and returns `loss` and other finite floats.

    Args:
        may_rest: some parameters may stay where they are.
    """
    algorithm = build_fresh(method, **hparams)
    before = [parameter.detach().clone() for parameter in algorithm.network.parameters()]
    returned = algorithm.update(random_batches(*[6] * algorithm.num_domains))
    assert "loss" in returned, f"update() must return the cross-entropy as 'loss', got {sorted(returned)}"
    for key, value in returned.items():
        assert type(value) is float, f"update() must return plain floats, got {type(value).__name__} for {key!r}"
        assert math.isfinite(value), f"update() returned {value} for {key!r}"
    after = list(algorithm.network.parameters())
    assert all(parameter.isfinite().all() for parameter in after), "update() made parameters infinite or NaN"
    moved = [not torch.equal(old, new) for old, new in zip(before, after, strict=True)]
    assert any(moved) if may_rest else all(moved), "update() did not move all parameters of the network"


def check_domain_sizes(
    method: type[Algorithm],
    counts: tuple[tuple[int, int], ...] = ((5, 2), (2, 5), (1, 8), (1, 1), (0, 6), (6, 0)),
    **hparams: Any,
) -> None:
    """Domains may differ in size or be absent from a batch."""
    for first, second in counts:
        algorithm = build_fresh(method, **hparams)
        sizes = [first, second, *[3] * (algorithm.num_domains - 2)]
        for step in range(3):
            returned = algorithm.update(random_batches(*sizes, seed=step))
            assert all(map(math.isfinite, returned.values())), (
                f"batches of {sizes} images: update() returned {returned}"
            )
        tensors = (*algorithm.parameters(), *algorithm.buffers())
        assert all(tensor.isfinite().all() for tensor in tensors), f"batches of {sizes} images make weights infinite"


def check_resume(method: type[Algorithm], saved_after: int = 3, **hparams: Any) -> None:
    """The saved state is complete: a method that loads it continues to the bit."""
    algorithm = build_fresh(method, random_network, **hparams)
    sizes = _sizes(algorithm)
    for step in range(saved_after):
        algorithm.update(random_batches(*sizes, seed=step))
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    torch_state = torch.get_rng_state()
    rest = range(saved_after, saved_after + 4)
    expected = [algorithm.update(random_batches(*sizes, seed=step)) for step in rest]

    file.seek(0)
    restored = build_fresh(method, random_network, seed=99, **hparams)
    restored.load_state_dict(torch.load(file, weights_only=True))
    torch.set_rng_state(torch_state)
    resumed = [restored.update(random_batches(*sizes, seed=step)) for step in rest]
    hint = "keep state in parameters, buffers, optimizers in attributes, `updates` or get_extra_state()"
    assert resumed == expected, f"saved after {saved_after} updates, the losses differ; {hint}"
    assert_same_state(restored.state_dict(), algorithm.state_dict(), f"saved after {saved_after} updates; {hint}")


def check_reproducible(method: type[Algorithm], **hparams: Any) -> None:
    """The same seed gives the same losses and the same state, to the bit."""
    states = []
    for _ in range(2):
        algorithm = build_fresh(method, random_network, seed=5, **hparams)
        returned = [algorithm.update(random_batches(*_sizes(algorithm), seed=step)) for step in range(5)]
        states.append((returned, algorithm.state_dict()))
    assert_same_state(states[0], states[1], "two runs with one seed differ; draw random numbers from self.generator")


def check_predict(method: type[Algorithm], *, is_training: bool = True, **hparams: Any) -> None:
    """Prediction is in eval mode, repeatable, and without side effects.

    Args:
        is_training: the mode before prediction, and after it.
    """
    algorithm = build_fresh(method, random_network, **hparams)
    algorithm.update(random_batches(*[6] * algorithm.num_domains))
    algorithm.train(is_training)
    x = random_batches(5)[0][0]
    expected = copy.deepcopy(algorithm.network).eval()(x).detach()
    buffers = [buffer.clone() for buffer in algorithm.buffers()]
    torch_state = torch.get_rng_state()
    own_state = None if algorithm.generator is None else algorithm.generator.get_state()
    for _ in range(2):
        torch.testing.assert_close(algorithm.predict(x), expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), torch_state), "predict() draws random numbers"
    if algorithm.generator is not None and own_state is not None:
        assert torch.equal(algorithm.generator.get_state(), own_state), "predict() draws random numbers"
    assert all(module.training is is_training for module in algorithm.modules()), "predict() changes the mode"
    same = [torch.equal(old, new) for old, new in zip(buffers, algorithm.buffers(), strict=True)]
    assert all(same), "predict() changes buffers"


def check_batch_is_unchanged(method: type[Algorithm], **hparams: Any) -> None:
    """An update does not write into the images and labels it is given."""
    algorithm = build_fresh(method, **hparams)
    sizes = _sizes(algorithm)
    batches, expected = random_batches(*sizes), random_batches(*sizes)
    algorithm.update(batches)
    assert_same_state(batches, expected, "update() changes its batch")
    assert not any(x.requires_grad for x, _ in batches), "update() leaves requires_grad on its batch"


def check_steps(method: type[Algorithm], **hparams: Any) -> None:
    """Every step of an optimizer goes through `step_`, which averages gradients over processes."""
    algorithm = build_fresh(method, **hparams)
    stepped: list[object] = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: stepped.append(optimizer))
    try:
        with patch.object(algorithm, "step_", wraps=algorithm.step_) as step:
            for seed in range(4):
                algorithm.update(random_batches(*_sizes(algorithm), seed=seed))
    finally:
        hook.remove()
    taken = [call.args[0] for call in step.call_args_list]
    assert taken == stepped, "an optimizer steps by itself; use descend_, minimize_, apply_gradients_ or step_"
    assert len(taken) >= 4, f"{len(taken)} optimizer steps in 4 updates"


def check_device(method: type[Algorithm], max_waits: int | None = None, **hparams: Any) -> None:
    """On a GPU, which is a fake one, all tensors are on the same device, and the losses are those on the CPU.

    Args:
        max_waits: how often an update may wait for the device, as `.item()`, `.cpu()` or a boolean mask does; default:
            any number.
    """
    algorithm = build_fresh(method, random_network, **hparams)
    counts, steps = _sizes(algorithm), range(5)
    expected = [dict(algorithm.update(random_batches(*counts, seed=step))) for step in steps]
    with FakeDevice() as gpu:
        algorithm = build_fresh(method, random_network, **hparams).to(DEVICE)
        for step in steps:
            batches = [(x.to(DEVICE), y.to(DEVICE)) for x, y in random_batches(*counts, seed=step)]
            before = gpu.waits.copy()
            try:
                measurements = algorithm.update(batches)
            except DeviceMixError as error:
                raise AssertionError(
                    f"on a GPU, {error}; move what update() makes to the device of its images"
                ) from error
            waits = gpu.waits - before
            assert max_waits is None or waits.total() <= max_waits, (
                f"update() waits {waits.total()} times for the device, more than {max_waits}: {', '.join(waits)}"
            )
            for name, value in measurements.items():
                assert math.isclose(value, expected[step][name], rel_tol=1e-4, abs_tol=1e-6), (
                    f"{name!r} is {value} on a GPU and {expected[step][name]} on the CPU"
                )


def check_memory(method: type[Algorithm], **hparams: Any) -> None:
    """Updates leave no tensors behind."""
    # What exists already is neither counted nor searched for garbage, which takes long in a large program.
    gc.freeze()
    try:
        algorithm = build_fresh(method, _wide_network, **{"lr": 1e-4, **hparams})
        batches = random_batches(*[32] * algorithm.num_domains)
        for _ in range(6):
            algorithm.update(batches)
        growths = []
        # A leak grows every time; the allocator takes a larger piece once in a while.
        for _ in range(3):
            tensors, peak = _measure_memory()
            for _ in range(20):
                algorithm.update(batches)
            tensors_after, peak_after = _measure_memory()
            growths.append(peak_after - peak)
            # The activations of one update are 1.2 MB, so leaking every graph would add 20 MB.
            if growths[-1] < 6e6:
                break
    finally:
        gc.unfreeze()
    assert tensors_after <= tensors, "the number of tensors grows with every update; keep no graph alive"
    assert min(growths) < 6e6, "memory grows with every update"


def _measure_memory() -> tuple[int, int]:
    """Return the number of tensors and the highest memory use in bytes, which is unknown on Windows."""
    gc.collect()
    tensors = sum(1 for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter))
    if sys.platform == "win32":
        return tensors, 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return tensors, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def build_fresh(
    method: type[Algorithm], make: Callable[[], nn.Module] | None = None, *, seed: int = 0, **hparams: Any
) -> Algorithm:
    """Build a method around a new network (default: `plain_network`), with everything drawn from the seed."""
    torch.manual_seed(seed)
    return build(method, (make or plain_network)(), seed=seed, **hparams)


def build(
    method: type[Algorithm], network: nn.Module, *, num_domains: int | None = None, seed: int = 0, **hparams: Any
) -> Algorithm:
    """Build a method around a network.

    Args:
        num_domains: default: 2, or as many as the method needs.
        seed: of the method's own draws.
        hparams: also other arguments of `Algorithm`.
    """
    count = max(2, method.min_domains) if num_domains is None else num_domains
    settings: dict[str, Any] = {
        "num_domains": count,
        "generator": torch.Generator().manual_seed(seed),
        "domain_sizes": [40 + 10 * index for index in range(count)],
        "lr": 1e-2,
    }
    return method(network, **(settings | hparams))


def _sizes(algorithm: Algorithm) -> list[int]:
    """Return one batch size per domain, which differ."""
    return [5, 4, *[3] * algorithm.num_domains][: algorithm.num_domains]


def plain_network() -> Network:
    """Build a network of two layers that draws nothing."""
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 16), nn.ReLU())
    return Network(featurizer, nn.Linear(16, NUM_CLASSES), input_shape=SHAPE, num_features=16)


def _wide_network() -> Network:
    """Build a network whose activations take much memory and little time: 18 kB per image."""
    featurizer = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.AvgPool2d(12), nn.Flatten())
    return Network(featurizer, nn.Linear(16, NUM_CLASSES), input_shape=SHAPE, num_features=16)


def random_network() -> Network:
    """Build a network with dropout, which draws from torch's global generator, and batch-norm statistics."""
    featurizer = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
    )
    return Network(featurizer, nn.Linear(4 * 36, NUM_CLASSES), input_shape=SHAPE, num_features=4 * 36)


def random_batches(*counts: int, seed: int = 1) -> Batches:
    """Return one (x, y) per count."""
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(n, *SHAPE, generator=random), torch.randint(NUM_CLASSES, (n,), generator=random)) for n in counts
    ]


def assert_same_state(first: object, second: object, problem: str = "states differ") -> None:
    """Compare nested dictionaries and lists of tensors exactly."""
    assert type(first) is type(second), problem
    if isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys(), problem
        for key in first:
            assert_same_state(first[key], second[key], f"{problem}: {key}" if isinstance(key, str) else problem)
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
        assert len(first) == len(second), problem
        for one, two in zip(first, second, strict=True):
            assert_same_state(one, two, problem)
    elif isinstance(first, Tensor) and isinstance(second, Tensor):
        torch.testing.assert_close(first, second, rtol=0, atol=0, msg=lambda text: f"{problem}\n{text}")
    else:
        assert first == second, problem
