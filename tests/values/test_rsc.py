"""RSC: muted features, chosen by gradients and percentiles computed with numpy."""

import copy

import numpy as np
import pytest
import torch
from tiny_problem import two_domains
from torch import nn
from torch.nn import functional as F

from domainwise.algorithms import RSC
from domainwise.algorithms.rsc import compute_percentile
from domainwise.networks import Network

LR, WEIGHT_DECAY = 0.01, 0.1


def fresh(**given) -> RSC:
    """Seven features of seven samples; a nonlinear classifier, so that samples of a class differ in gradient."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 7), nn.Tanh())
    classifier = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    network = Network(featurizer, classifier, input_shape=(3, 4, 4), num_features=7)
    return RSC(network, num_domains=2, lr=LR, weight_decay=WEIGHT_DECAY, **given)


def kept_features(features, classifier, y, feature_drop: float, sample_drop: float):
    """1 where a feature stays and 0 where it is muted, (7, 7)."""
    inner, bias, outer, outer_bias = (parameter.detach().numpy() for parameter in classifier.parameters())

    def true_class_probability(feature, label: int) -> float:
        scores = np.exp(outer @ np.tanh(inner @ feature + bias) + outer_bias)
        return scores[label] / scores.sum()

    kept, drops = [], []
    for feature, label in zip(features, y, strict=True):
        hidden = np.tanh(inner @ feature + bias)
        gradient = inner.T @ (outer[label] * (1 - hidden**2))
        kept.append(gradient < np.percentile(gradient, (1 - feature_drop) * 100))
        muted = np.where(kept[-1], feature, 0)
        drops.append(true_class_probability(feature, label) - true_class_probability(muted, label))
    threshold = np.percentile(drops, (1 - sample_drop) * 100)
    return np.array([row if drop >= threshold else np.ones(7) for row, drop in zip(kept, drops, strict=True)])


# Half of seven features and of seven samples: the percentile is one of them, and "at or above" includes it.
@pytest.mark.parametrize(("feature_drop", "sample_drop"), [(0.4, 0.3), (0.2, 0.6), (0.5, 0.5)])
def test_updates_follow_the_textbook(feature_drop: float, sample_drop: float) -> None:
    algorithm = fresh(feature_drop=feature_drop, sample_drop=sample_drop)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(5):
        returned = algorithm.update(two_domains(seed))

        x, y = (torch.cat(parts) for parts in zip(*two_domains(seed), strict=True))
        features = network.featurizer(x)
        kept = kept_features(features.detach().numpy(), network.classifier, y.numpy(), feature_drop, sample_drop)
        loss = F.cross_entropy(network.classifier(features * torch.from_numpy(kept)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-10)}
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("drop", "muted_in_each_muted_sample", "muted_samples"), [(0.5, 4, 4), (1.0, 7, 7)])
def test_the_requested_shares_are_muted(drop: float, muted_in_each_muted_sample: int, muted_samples: int) -> None:
    algorithm = fresh(feature_drop=drop, sample_drop=drop)
    seen = []
    algorithm.network.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    algorithm.update(two_domains())
    muted = (seen[-1] == 0).sum(1)
    assert muted.tolist().count(muted_in_each_muted_sample) == muted_samples
    assert muted.tolist().count(0) == 7 - muted_samples


@pytest.mark.parametrize("share", [0, 0.25, 1 - 0.4, 1 - 1 / 3, 1])
@pytest.mark.parametrize("count", [1, 2, 31, 64, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_percentiles_equal_numpys_in_both_precisions(count: int, share: float, dtype: torch.dtype) -> None:
    """Many of these ranks are integers: the threshold is then one of the values, and that value is muted."""
    values = torch.randn(50, count, generator=torch.Generator().manual_seed(0), dtype=dtype)
    expected = np.percentile(values.numpy(), share * 100, axis=1, keepdims=True).astype(values.numpy().dtype)
    ours = compute_percentile(values, share)
    torch.testing.assert_close(ours, torch.from_numpy(expected), rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    if dtype == torch.float32:
        assert torch.equal(values < ours, torch.from_numpy(values.numpy() < expected))
