"""The Lightning callback in real `Trainer.fit` calls, against a loop written by hand."""

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise import LowRankPerturbation, MultiplePerturbation, Perturbation, UniversalPerturbation


@pytest.fixture(scope="module")
def cases() -> Any:
    pytest.importorskip("lightning", reason="lightning is not installed")
    return importlib.import_module("lightning_cases")


@pytest.mark.parametrize("kind", [MultiplePerturbation, LowRankPerturbation, UniversalPerturbation])
def test_the_callback_trains_as_a_loop_written_by_hand(cases: Any, kind: type[Perturbation], tmp_path: Path) -> None:
    module, callback = cases.Classifier(), cases.AdversarialTraining(cases.perturb(kind))
    cases.fit(tmp_path, module, callback)
    expected = cases.perturb(kind)
    cases.assert_same(module.network, cases.train_by_hand(expected, cases.two_passes))
    cases.assert_same(callback.perturbation, expected)
    assert callback.perturbation.updates == 8
    # Validation images are not attacked.
    assert all(torch.equal(x, cases.dataset().tensors[0]) for x in module.validated)


@pytest.mark.parametrize("kind", [LowRankPerturbation, UniversalPerturbation])
def test_a_perturbation_in_the_module_is_not_moved_by_the_optimizer(
    cases: Any, kind: type[Perturbation], tmp_path: Path
) -> None:
    module, expected = cases.OnePass(cases.perturb(kind)), cases.perturb(kind)
    assert any(each is part for each in module.parameters() for part in module.perturbation.parameters())
    cases.fit(tmp_path, module)
    cases.assert_same(module.network, cases.train_by_hand(expected, cases.one_pass))
    cases.assert_same(module.perturbation, expected)


def test_it_resumes_exactly_from_a_checkpoint(cases: Any, tmp_path: Path) -> None:
    whole, at_once = cases.Classifier(), cases.AdversarialTraining(cases.perturb())
    cases.fit(tmp_path, whole, at_once)
    first = cases.AdversarialTraining(cases.perturb())
    half = cases.fit(tmp_path, cases.Classifier(), first, max_epochs=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    # Another start, which the checkpoint replaces.
    resumed, callback = (
        cases.Classifier(),
        cases.AdversarialTraining(MultiplePerturbation(cases.SHAPE, num_domains=3, epsilon=1.0)),
    )
    cases.fit(tmp_path, resumed, callback, ckpt_path=tmp_path / "half.ckpt")
    cases.assert_same(resumed.network, whole.network)
    cases.assert_same(callback.perturbation, at_once.perturbation)
    assert callback.perturbation.updates == at_once.perturbation.updates == 8


def test_gradient_accumulation_and_autocast(cases: Any, tmp_path: Path) -> None:
    seen: list[torch.dtype] = []

    def losses(module: Any, x: Tensor, batch: Any) -> Tensor:
        logits = module(x)
        seen.append(logits.dtype)
        return F.cross_entropy(logits.float(), batch[1], reduction="none")

    callback = cases.AdversarialTraining(cases.perturb(), loss_fn=losses)
    before = copy.deepcopy(callback.perturbation)
    cases.fit(tmp_path, cases.Classifier(), callback, plugins=[cases.HalfPrecision()], accumulate_grad_batches=2)
    assert seen == [torch.float16] * 8
    assert not torch.equal(callback.perturbation.deltas, before.deltas)


def test_a_dict_as_batch_and_one_domain(cases: Any, tmp_path: Path) -> None:
    class FromDict(cases.Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch["pixels"]), batch["class"])

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def collate(samples: Any) -> dict[str, Tensor]:
        x, y, _ = torch.utils.data.default_collate(samples)
        return {"pixels": x, "class": y}

    perturbation = UniversalPerturbation(cases.SHAPE, epsilon=1.0)
    callback = cases.AdversarialTraining(perturbation, image="pixels", label="class", domain=None, steps=2)
    cases.fit(tmp_path, FromDict(), callback, collate_fn=collate)
    assert perturbation.updates == 8


@pytest.mark.parametrize(
    ("collate", "error", "message"),
    [
        (lambda samples: tuple(torch.utils.data.default_collate(samples)), TypeError, "list or a dict, got tuple"),
        (lambda samples: torch.utils.data.default_collate(samples)[:2], ValueError, r"domain=2\) found no such part"),
        (lambda samples: dict(enumerate(samples)), ValueError, "every sample needs its image, label and domain index"),
    ],
)
def test_error_for_a_batch_without_domains(
    cases: Any, collate: Callable[..., Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    callback = cases.AdversarialTraining(
        cases.perturb(), domain=2 if "domain=2" in message or error is TypeError else "domain"
    )
    with pytest.raises(error, match=message):
        cases.fit(tmp_path, cases.Classifier(), callback, collate_fn=collate)


@pytest.mark.parametrize("output", [tuple, dict])
def test_error_for_a_module_that_returns_no_logits(cases: Any, output: type, tmp_path: Path) -> None:
    class ReturnsMore(cases.Classifier):
        def forward(self, x: Tensor) -> Any:
            logits = self.network(x)
            return {"logits": logits} if output is dict else (logits, x)

    callback = cases.AdversarialTraining(cases.perturb())
    with pytest.raises(TypeError, match=rf"needs the logits of module\(images\), got {output.__name__}; pass loss_fn="):
        cases.fit(tmp_path, ReturnsMore(), callback)


@pytest.mark.parametrize("perturbation", [None, MultiplePerturbation, 0.5])
def test_error_for_something_else_than_a_perturbation(cases: Any, perturbation: Any) -> None:
    with pytest.raises(TypeError, match=r"^perturbation must be a Perturbation, such as"):
        cases.AdversarialTraining(perturbation)


def test_one_pass_does_not_depend_on_the_scale_of_the_loss(cases: Any, tmp_path: Path) -> None:
    class ScaledOnePass(cases.OnePass):
        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            self.perturbation.ascend_(scaler=getattr(self.trainer.precision_plugin, "scaler", None))

    states = []
    for scale in (None, 1.0, 1024.0):
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        perturbation = UniversalPerturbation(
            cases.SHAPE, num_domains=3, epsilon=9.0, ascent="gradient", generator=torch.Generator().manual_seed(0)
        )
        settings = {} if scale is None else {"plugins": [cases.ScaledPrecision(scaler)]}
        cases.fit(tmp_path, ScaledOnePass(perturbation), **settings)
        states.append(perturbation.deltas)
    torch.testing.assert_close(states[1], states[0])
    torch.testing.assert_close(states[2], states[0])
