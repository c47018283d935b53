"""Adversarial training in the Hugging Face Trainer: a mixin that attacks the images of every training batch."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.errors import DomainwiseError, suggest_install
from domainwise.integrations import check_perturbation
from domainwise.perturbations import Perturbation
from domainwise.storage.files import write_atomic

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as error:
    raise ImportError(f"Transformers is not installed; {suggest_install('transformers')}") from error

_FILE = "perturbation.pt"


class AdversarialTrainingMixin:
    """Makes a `Trainer` attack each training batch before it computes the loss.

    `class MATTrainer(AdversarialTrainingMixin, Trainer)` takes the arguments of `Trainer` and these. Every sample of
    the training data needs its domain index; the model never sees it. Evaluation is unchanged. The perturbation is
    saved in every checkpoint and restored by `train(resume_from_checkpoint=...)`.

    Args:
        perturbation: A perturbation with one domain per training domain. With an image processor that normalizes, give
            it the processor's `mean` and `std`.
        attack_steps: Number of ascent steps per batch.
        image_key, domain_key: Names of the images and domains in the inputs. `domain_key=None` if there is only one
            domain.
    """

    args: Any

    def __init__(
        self,
        *args: Any,
        perturbation: Perturbation,
        attack_steps: int = 1,
        image_key: str = "pixel_values",
        domain_key: str | None = "domain",
        **kwargs: Any,
    ) -> None:
        check_perturbation(perturbation)
        super().__init__(*args, **kwargs)
        self.perturbation = perturbation
        self.attack_steps = attack_steps
        self.image_key = image_key
        self.domain_key = domain_key
        self.add_callback(_SavePerturbation(perturbation))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        self.perturbation.to(self.args.device)
        if resume_from_checkpoint:
            is_path = not isinstance(resume_from_checkpoint, bool)
            folder = resume_from_checkpoint if is_path else get_last_checkpoint(self.args.output_dir)
            if folder is not None:  # otherwise the trainer has an error of its own
                file = Path(str(folder)) / _FILE
                if not file.exists():
                    raise DomainwiseError(
                        f"checkpoint {folder} has no {_FILE}, so it was saved without this mixin; resume from another, "
                        "or start from its weights"
                    )
                self.perturbation.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        domain = None if self.domain_key is None else inputs.pop(self.domain_key, None)
        if model.training:
            if domain is None and self.domain_key is not None:
                raise ValueError(
                    f"the batch has no {self.domain_key!r}, only {', '.join(inputs)}; give every training sample its "
                    "domain index, and set remove_unused_columns=False in TrainingArguments"
                )
            if self.image_key not in inputs:
                raise ValueError(
                    f"the batch has no {self.image_key!r}, only {', '.join(inputs)}; name its images with image_key="
                )
            inputs[self.image_key] = self.perturbation.attack(
                inputs[self.image_key],
                domain,
                lambda x: self.compute_sample_losses(model, {**inputs, self.image_key: x}),
                self.attack_steps,
            )
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def compute_sample_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Return the losses that the attack increases, one per sample, (b,). Override it for other models."""
        without_labels = {name: value for name, value in inputs.items() if name != "labels"}
        outputs = model(**without_labels)
        # Models of the library return an object, or a tuple if they are configured to; others often return a dict.
        if isinstance(outputs, (tuple, list)) and outputs:
            logits = outputs[0]
        else:
            logits = outputs.get("logits") if isinstance(outputs, dict) else getattr(outputs, "logits", None)
        if "labels" not in inputs or not isinstance(logits, Tensor):
            raise ValueError(
                f"AdversarialTrainingMixin needs 'labels' in the batch, which has {', '.join(inputs)}, and 'logits' "
                f"from the model, which returns {type(outputs).__name__}; override compute_sample_losses for others"
            )
        return F.cross_entropy(logits, inputs["labels"], reduction="none")

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Models do not know the domain.
        inputs = {name: value for name, value in inputs.items() if name != self.domain_key}
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]


class _SavePerturbation(TrainerCallback):
    """Saves the perturbation next to the model in every checkpoint."""

    def __init__(self, perturbation: Perturbation) -> None:
        self.perturbation = perturbation

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            content = io.BytesIO()
            torch.save(self.perturbation.state_dict(), content)
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            write_atomic(folder / _FILE, content.getbuffer())
