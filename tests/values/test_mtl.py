"""MTL: a classifier that also sees its domain's mean feature, against plain loops over domains and samples."""

import copy

import pytest
import torch
from tiny_problem import two_domains
from torch import Tensor, nn

from domainwise.algorithms import MTL
from domainwise.networks import Network

LR, WEIGHT_DECAY, EMA = 0.01, 0.1, 0.7
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def fresh() -> MTL:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    return MTL(network, num_domains=2, lr=LR, weight_decay=WEIGHT_DECAY, ema=EMA)


def scores(classifier: nn.Linear, feature: Tensor, embedding: Tensor) -> Tensor:
    """The classifier's first four columns are for the features, the last four for the embedding."""
    return classifier.weight[:, :4] @ feature + classifier.weight[:, 4:] @ embedding + classifier.bias


def textbook_update(featurizer, classifier, optimizer, embeddings: list[Tensor], batches) -> Tensor:
    """Update the network and `embeddings` in place and return the cross-entropy of each sample."""
    losses = []
    for e, (x, y) in enumerate(batches):
        features = featurizer(x)
        # Not detached: gradients also flow through the embedding.
        embedding = EMA * sum(features) / len(features) + (1 - EMA) * embeddings[e]
        logits = [scores(classifier, feature, embedding) for feature in features]
        losses.append(torch.stack([z.exp().sum().log() - z[label] for z, label in zip(logits, y, strict=True)]))
        embeddings[e] = embedding.detach()
    optimizer.zero_grad()
    sum(each.mean() for each in losses).backward()
    optimizer.step()
    return torch.cat(losses)


def test_updates_follow_the_textbook() -> None:
    algorithm = fresh()
    featurizer, classifier = copy.deepcopy(algorithm.network.featurizer), copy.deepcopy(algorithm.network.classifier)
    parameters = [*featurizer.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LR, weight_decay=WEIGHT_DECAY)
    embeddings = [torch.zeros(4), torch.zeros(4)]
    assert classifier.weight.shape == (3, 8)
    for seed in range(4):
        returned = algorithm.update(two_domains(seed))
        losses = textbook_update(featurizer, classifier, optimizer, embeddings, two_domains(seed))
        # The mean over samples, comparable with other methods; the training loss is the sum over domains.
        assert returned == {"loss": pytest.approx(losses.mean().item(), rel=1e-10)}
        torch.testing.assert_close(algorithm.embeddings, torch.stack(embeddings), **EXACT)
        for ours, expected in zip(algorithm.network.parameters(), parameters, strict=True):
            torch.testing.assert_close(ours, expected, **EXACT)


def test_network_descends_the_sum_over_domains() -> None:
    """Adam hides the scale of the gradient, so the gradient itself is compared."""
    algorithm = fresh()
    featurizer, classifier = copy.deepcopy(algorithm.network.featurizer), copy.deepcopy(algorithm.network.classifier)
    total = 0
    for x, y in two_domains():
        features = featurizer(x)
        for feature, label in zip(features, y, strict=True):
            logits = scores(classifier, feature, EMA * features.mean(0))
            total = total + (logits.exp().sum().log() - logits[label]) / len(y)
    total.backward()
    algorithm.update(two_domains())
    expected = [*featurizer.parameters(), *classifier.parameters()]
    for ours, theirs in zip(algorithm.network.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)


def test_predict_uses_the_mean_feature_of_its_batch_and_keeps_the_embeddings() -> None:
    algorithm = fresh()
    algorithm.update(two_domains())
    before = algorithm.embeddings.clone()
    x = two_domains(seed=5)[0][0]
    with torch.no_grad():
        features = [algorithm.network.featurizer(image[None])[0] for image in x]
        expected = [scores(algorithm.network.classifier, feature, sum(features) / 5) for feature in features]
    torch.testing.assert_close(algorithm.predict(x), torch.stack(expected), **EXACT)
    assert torch.equal(algorithm.embeddings, before)


def test_domain_without_samples_keeps_its_embedding() -> None:
    algorithm = fresh()
    (x, y), absent = two_domains()
    algorithm.update([(x, y), absent])
    before = algorithm.embeddings.clone()
    algorithm.update([(x, y), (x[:0], y[:0])])
    assert torch.equal(algorithm.embeddings[1], before[1])
    assert not torch.equal(algorithm.embeddings[0], before[0])
