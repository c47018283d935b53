"""All methods, by their name on the command line and in records."""

from collections.abc import Mapping

from domainwise.algorithms.andmask import ANDMask
from domainwise.algorithms.arm import ARM
from domainwise.algorithms.at import AT
from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.coral import CORAL
from domainwise.algorithms.dann import DANN
from domainwise.algorithms.erm import ERM
from domainwise.algorithms.fish import Fish
from domainwise.algorithms.groupdro import GroupDRO
from domainwise.algorithms.gut import GUT
from domainwise.algorithms.iga import IGA
from domainwise.algorithms.irm import IRM
from domainwise.algorithms.ldat import LDAT
from domainwise.algorithms.mat import MAT
from domainwise.algorithms.mixup import Mixup
from domainwise.algorithms.mldg import MLDG
from domainwise.algorithms.mmd import MMD
from domainwise.algorithms.mtl import MTL
from domainwise.algorithms.ncdg import NCDG
from domainwise.algorithms.rsc import RSC
from domainwise.algorithms.sagnet import SagNet
from domainwise.algorithms.sandmask import SANDMask
from domainwise.algorithms.selfreg import SelfReg
from domainwise.algorithms.trm import TRM
from domainwise.algorithms.uat import UAT
from domainwise.algorithms.vrex import VREx

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "erm": ERM,
    "at": AT,
    "uat": UAT,
    "mat": MAT,
    "ldat": LDAT,
    "irm": IRM,
    "vrex": VREx,
    "groupdro": GroupDRO,
    "mixup": Mixup,
    "mldg": MLDG,
    "mmd": MMD,
    "coral": CORAL,
    "dann": DANN,
    "mtl": MTL,
    "sagnet": SagNet,
    "rsc": RSC,
    "andmask": ANDMask,
    "gut": GUT,
    "ncdg": NCDG,
    "fish": Fish,
    "sandmask": SANDMask,
    "iga": IGA,
    "trm": TRM,
    "arm": ARM,
    "selfreg": SelfReg,
}

__all__ = [
    "ALGORITHMS",
    "ARM",
    "AT",
    "CORAL",
    "DANN",
    "ERM",
    "GUT",
    "IGA",
    "IRM",
    "LDAT",
    "MAT",
    "MLDG",
    "MMD",
    "MTL",
    "NCDG",
    "RSC",
    "TRM",
    "UAT",
    "ANDMask",
    "Algorithm",
    "Fish",
    "GroupDRO",
    "Mixup",
    "SANDMask",
    "SagNet",
    "SelfReg",
    "VREx",
]
