"""The mixin in real runs of the Hugging Face Trainer."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise import UniversalPerturbation


@pytest.fixture(scope="module")
def cases() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return importlib.import_module("trainer_cases")


def test_the_model_is_trained_on_perturbed_images_inside_the_ball(cases: Any, tmp_path: Path) -> None:
    trainer = cases.train(tmp_path, cases.perturb(epsilon=0.5))
    assert trainer.perturbation.updates == len(trainer.trained) == 8
    clean = cases.Samples().images
    std = torch.tensor(cases.STD).reshape(3, 1, 1)
    for batch in trainer.trained:
        images = batch * std + torch.tensor(cases.MEAN).reshape(3, 1, 1)
        norms = (images[:, None] - clean).flatten(2).norm(dim=2)
        # Each differs from the nearest clean image by at most the radius, in pixels, and is itself an image.
        assert (norms.amin(1) <= 0.5 + 1e-5).all()
        assert norms.amin(1).max() > 0.1
        assert images.min() > -1e-5
        assert images.max() < 1 + 1e-5


def test_the_attack_raises_the_loss_of_the_model(cases: Any, tmp_path: Path) -> None:
    trainer = cases.train(tmp_path, max_steps=4)
    batch = torch.utils.data.default_collate([cases.Samples()[index] for index in range(24)])
    network = trainer.model.eval()

    def losses(x: Tensor) -> Tensor:
        return F.cross_entropy(network(pixel_values=x).logits, batch["labels"], reduction="none")

    attacked = trainer.perturbation.attack(batch["pixel_values"], batch["domain"], losses)
    assert losses(attacked).mean() > losses(batch["pixel_values"]).mean() + 0.01


def test_with_radius_zero_it_is_the_ordinary_trainer(cases: Any, tmp_path: Path) -> None:
    ordinary = cases.transformers.Trainer(
        model=cases.model(), args=cases.arguments(tmp_path / "ordinary"), train_dataset=cases.Samples(with_domain=False)
    )
    ordinary.train()
    # Without statistics, adding nothing leaves the bits alone; normalized images leave [0, 1].
    zero = UniversalPerturbation(cases.SHAPE, num_domains=3, epsilon=0, bounds=None)
    expected = cases.weights(ordinary)
    for name, tensor in cases.weights(cases.train(tmp_path / "zero", zero)).items():
        assert torch.equal(tensor, expected[name])
    assert any(
        not torch.equal(tensor, expected[name]) for name, tensor in cases.weights(cases.train(tmp_path / "mat")).items()
    )


@pytest.mark.parametrize("resume", [True, "checkpoint-4"])
def test_it_resumes_exactly_from_a_checkpoint(cases: Any, resume: Any, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    cases.train(folder, max_steps=4, lr_scheduler_type="constant")
    whole = cases.train(tmp_path / "whole", lr_scheduler_type="constant")
    if isinstance(resume, str):
        resume = str(folder / resume)
    # Another start, which the checkpoint replaces.
    resumed = cases.train(folder, cases.perturb(seed=8), resume=resume, lr_scheduler_type="constant")
    assert len(resumed.trained) == 4
    assert torch.equal(resumed.perturbation.deltas, whole.perturbation.deltas)
    assert resumed.perturbation.updates == 8
    for name, tensor in cases.weights(resumed).items():
        assert torch.equal(tensor, cases.weights(whole)[name])


@pytest.mark.parametrize("with_domain", [False, True])
@pytest.mark.parametrize("with_label", [False, True])
def test_evaluation_and_prediction_attack_nothing(
    cases: Any, with_domain: bool, with_label: bool, tmp_path: Path
) -> None:
    trainer = cases.train(tmp_path, max_steps=1)
    updates = trainer.perturbation.updates
    prediction = trainer.predict(cases.Samples(with_domain=with_domain, with_label=with_label))
    pixels = torch.stack([cases.Samples()[index]["pixel_values"] for index in range(24)])
    with torch.no_grad():
        expected = trainer.model.eval()(pixel_values=pixels).logits
    torch.testing.assert_close(torch.as_tensor(prediction.predictions), expected)
    assert trainer.perturbation.updates == updates


def test_gradient_accumulation(cases: Any, tmp_path: Path) -> None:
    trainer = cases.train(tmp_path, max_steps=2, gradient_accumulation_steps=2)
    assert trainer.perturbation.updates == 4


def test_error_for_training_data_without_domains(cases: Any, tmp_path: Path) -> None:
    trainer = cases.MATTrainer(
        model=cases.model(),
        args=cases.arguments(tmp_path),
        train_dataset=cases.Samples(with_domain=False),
        perturbation=cases.perturb(),
    )
    with pytest.raises(ValueError, match=r"no 'domain', only .*remove_unused_columns=False"):
        trainer.train()


@pytest.mark.parametrize("output", ["tuple", "dict"])
def test_a_model_may_return_a_tuple_or_a_dict(cases: Any, output: str, tmp_path: Path) -> None:
    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = cases.model()

        def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
            outputs = self.model(pixel_values=pixel_values, labels=labels)
            return outputs.to_tuple() if output == "tuple" else dict(outputs)

    plain = cases.train(tmp_path / "plain", max_steps=2)
    trainer = cases.MATTrainer(
        model=Other(),
        args=cases.arguments(tmp_path / output, max_steps=2),
        train_dataset=cases.Samples(),
        perturbation=cases.perturb(),
    )
    trainer.train()
    assert torch.equal(trainer.perturbation.deltas, plain.perturbation.deltas)


def test_error_for_a_model_without_logits(cases: Any, tmp_path: Path) -> None:
    trainer = cases.MATTrainer(
        model=cases.model(), args=cases.arguments(tmp_path), train_dataset=cases.Samples(), perturbation=cases.perturb()
    )
    for inputs, output in (({"labels": None}, "Tensor"), ({"pixel_values": None}, "Tensor")):
        with pytest.raises(
            ValueError, match=rf"needs 'labels' in the batch.*'logits'.*{output}; override compute_sample"
        ):
            trainer.compute_sample_losses(lambda **_: torch.zeros(2), inputs)


def test_error_for_images_under_another_name(cases: Any, tmp_path: Path) -> None:
    trainer = cases.MATTrainer(
        model=cases.model(),
        args=cases.arguments(tmp_path),
        train_dataset=cases.Samples(),
        perturbation=cases.perturb(),
        image_key="images",
    )
    with pytest.raises(ValueError, match=r"no 'images', only .*pixel_values.*; name its images with image_key="):
        trainer.train()


def test_error_for_a_checkpoint_without_a_perturbation(cases: Any, tmp_path: Path) -> None:
    cases.train(tmp_path, max_steps=1, save_steps=1)
    (tmp_path / "checkpoint-1" / "perturbation.pt").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-1 has no perturbation.pt, so it was saved without this mixin"):
        cases.train(tmp_path, resume=True)


def test_error_for_something_else_than_a_perturbation(cases: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^perturbation must be a Perturbation, such as"):
        cases.MATTrainer(
            model=cases.model(), args=cases.arguments(tmp_path), train_dataset=cases.Samples(), perturbation=0.5
        )
